// Exchanges the one-time code of the link for a cookie, then goes on to the docs.
"use strict";

// Commands stand between backticks in the server's sentences.
function say(text) {
  const parts = text.split("`").map((part, at) => {
    if (at % 2 === 0) return part;
    const code = document.createElement("code");
    code.textContent = part;
    return code;
  });
  document.getElementById("status").replaceChildren(...parts);
}

async function isSignedIn() {
  return (await fetch("/v1/templates")).ok;
}

async function arrive() {
  const code = new URLSearchParams(location.hash.slice(1)).get("code");
  // Out of the address bar and the history before anything else can see it.
  if (code) history.replaceState(null, "", "/");
  try {
    if (await isSignedIn()) {
      location.replace("/docs/");
      return;
    }
    if (!code) return;
    say("Signing in…");
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
    say(`${problem.detail} ${problem.fix}`);
  } catch (error) {
    say(`The server did not answer: ${error.message}. Check that it runs and open the link again.`);
  }
}

// A second link opened in the same tab changes only the fragment.
addEventListener("hashchange", arrive);
arrive();
