"""GGUF files read by the `gguf` package, without what makes that slow."""

from __future__ import annotations

from typing import Any

import gguf
import numpy as np
import numpy.typing as npt


class GgufReader(gguf.GGUFReader):  # type: ignore[misc]  # the package has no types
    """Slices plain arrays: a tokenizer is cut into hundreds of thousands of pieces, and those of a memmap are slow.

    The file is mapped all the same, and its pages are read when they are used.
    """

    @property
    def data(self) -> npt.NDArray[Any]:
        return self._data

    @data.setter
    def data(self, mapped: npt.NDArray[Any]) -> None:
        self._data = mapped.view(np.ndarray)
