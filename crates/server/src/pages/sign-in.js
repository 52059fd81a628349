// Exchanges the one-time code of the link for a cookie, then goes on to the docs.
"use strict";

(async () => {
  const code = new URLSearchParams(location.hash.slice(1)).get("code");
  if (!code) return;
  // Out of the address bar and the history before anything else can see it.
  history.replaceState(null, "", "/");
  const status = document.getElementById("status");
  status.textContent = "Signing in…";
  try {
    const answer = await fetch("/v1/login", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ code }),
    });
    if (answer.ok) {
      location.replace("/docs/");
      return;
    }
    const problem = await answer.json();
    status.textContent = `${problem.detail} ${problem.fix}`;
  } catch (error) {
    status.textContent = `The server did not answer: ${error.message}. Check that it runs and open the link again.`;
  }
})();
