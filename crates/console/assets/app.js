const answer = await fetch("api/session");
document.getElementById("app").textContent = answer.ok ? "Shoal" : "Sign in";
