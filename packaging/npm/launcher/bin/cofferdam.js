#!/usr/bin/env node
// Starts the program of the package that npm has installed for this machine, in place of this process as far as a
// caller can see: the same standard streams, signals passed on, the same end.
"use strict";

const { spawn } = require("node:child_process");
const { constants } = require("node:os");

const name = `cofferdam-${process.platform}-${process.arch}`;
let program;
try {
  program = require.resolve(`${name}/bin/cofferdam`);
} catch {
  console.error(`cofferdam: the package ${name} is not installed`);
  console.error("hint: cofferdam runs on Linux, x64 and arm64; npm leaves its program out with --omit=optional");
  process.exit(125);
}

const child = spawn(program, process.argv.slice(2), { stdio: "inherit" });
const passedOn = ["SIGHUP", "SIGINT", "SIGQUIT", "SIGTERM", "SIGUSR1", "SIGUSR2"];
for (const signal of passedOn) process.on(signal, () => child.kill(signal));
child.on("error", (error) => {
  console.error(`cofferdam: ${error.message}`);
  process.exit(125);
});
child.on("exit", (code, signal) => {
  if (signal === null) process.exit(code);
  // End by the same signal, without the function above.
  process.removeAllListeners(signal);
  process.kill(process.pid, signal);
  // Reached if that signal is blocked here.
  setTimeout(() => process.exit(128 + constants.signals[signal]), 100);
});
