"""Credentials stay out of everything that is written or shown. They come from the environment and go nowhere else."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

HIDDEN = "***"
SECRET_NAME = re.compile(
    r"(TOKEN(?!IZER)|SECRET|PASSWORD|PASSWD|API_?KEY|ACCESS_?KEY|PRIVATE_?KEY|CREDENTIAL)(?!.*_(FILE|PATH|DIR|URI)$)",
    re.I,
)
MIN_LENGTH = 8  # a shorter value would blot out ordinary words
KNOWN_FORMS = re.compile(r"\b(hf_[A-Za-z0-9]{20,}|gh[opsu]_[A-Za-z0-9]{20,}|sk-[A-Za-z0-9_-]{20,})")
IN_URL = re.compile(r"(://)[^/\s@\"']+(@)")
IN_QUERY = re.compile(r"([?&][\w.-]*(?:token|key|secret|password|signature|sig)=)[^&\s\"']+", re.I)


def redacted(text: str, environment: Mapping[str, str] = os.environ) -> str:
    """`text` with every credential replaced: values of secret variables, those inside URLs, and well-known forms."""
    values = {value for name, value in environment.items() if len(value) >= MIN_LENGTH and SECRET_NAME.search(name)}
    for value in sorted(values, key=len, reverse=True):
        text = text.replace(value, HIDDEN)
    text = IN_URL.sub(rf"\1{HIDDEN}\2", text)
    text = IN_QUERY.sub(rf"\1{HIDDEN}", text)
    return KNOWN_FORMS.sub(HIDDEN, text)
