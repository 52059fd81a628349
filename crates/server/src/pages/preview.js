// Exchanges the one-time code of the link for a cookie of this host, then goes on to the preview.
"use strict";

function say(text) {
  document.getElementById("status").textContent = text;
}

async function enter() {
  const code = new URLSearchParams(location.hash.slice(1)).get("code");
  if (!code) return;
  // Out of the address bar and the history before anything else can see it.
  history.replaceState(null, "", location.pathname);
  say("Opening…");
  try {
    const answer = await fetch("/.sandbar/enter", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ code }),
    });
    if (answer.ok) location.replace("/");
    else say(await answer.text());
  } catch (error) {
    say(`The server did not answer: ${error.message}. Check that it runs and open the link again.`);
  }
}

// A second link opened in the same tab changes only the fragment.
addEventListener("hashchange", enter);
enter();
