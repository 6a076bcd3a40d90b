import { render } from "preact";
import { Shell } from "./app/shell";
import { start } from "./app/session";

const host = document.getElementById("app");
if (host) {
  render(<Shell />, host);
  start();
}
