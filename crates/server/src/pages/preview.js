// Exchanges the one-time code of the link for a cookie of this host, then goes on to the preview.
"use strict";

// Commands stand between backticks in the server's sentences.
function say(id, text) {
  const parts = text.split("`").map((part, at) => {
    if (at % 2 === 0) return part;
    const code = document.createElement("code");
    code.textContent = part;
    return code;
  });
  document.getElementById(id).replaceChildren(...parts);
}

async function enter() {
  const code = new URLSearchParams(location.hash.slice(1)).get("code");
  if (!code) return;
  // Out of the address bar and the history before anything else can see it.
  history.replaceState(null, "", location.pathname);
  say("what", "Opening…");
  say("fix", "");
  try {
    const answer = await fetch("/.sandbar/enter", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ code }),
    });
    if (answer.ok) {
      location.replace("/");
      return;
    }
    const [what, ...fix] = (await answer.text()).split("\n");
    say("what", what);
    say("fix", fix.join(" "));
    // Most links that are opened twice are opened by the same person.
    document.getElementById("inside").hidden = false;
  } catch (error) {
    say("what", "The server did not answer.");
    say("fix", `${error.message}. Check that it runs, and open the link again.`);
  }
}

// A second link opened in the same tab changes only the fragment.
addEventListener("hashchange", enter);
enter();
