/**
 * Started by an owner of a scope with a pipe as stdin: when the pipe ends, the owner has closed the scope or is dead,
 * and the scope is taken down unless its owner has marked it as kept.
 */
import { readFacts, takeDown } from './scope.ts';

for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.on(signal, () => undefined);

const [, , directory] = process.argv;
if (directory === undefined) throw new Error('usage: reaper.ts SCOPE-DIRECTORY');

process.stdin.resume();
process.stdin.once('close', async () => {
  if (readFacts(directory)?.kept !== true) await takeDown(directory);
  process.exit(0);
});
