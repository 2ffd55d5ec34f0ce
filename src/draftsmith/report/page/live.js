// A page that comes from `draftsmith serve-report` loads itself anew when its run has gone on.
"use strict";

(() => {
  const mark = document.querySelector('meta[name="state"]');
  if (!mark || !location.protocol.startsWith("http")) return;
  setInterval(async () => {
    if (document.hidden || document.documentElement.dataset.zoomed === "yes") return; // somebody is looking closely
    try {
      const answer = await fetch("state", { cache: "no-store" });
      if (answer.ok && (await answer.text()) !== mark.content) location.reload();
    } catch { /* the server has gone; the page stays as it is */ }
  }, 4000);
})();
