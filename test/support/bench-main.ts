/**
 * `npm run bench -- TOPIC... [--out FILE]`: measures, prints a table, and writes the rows as JSON where told. A goal
 * that is missed is a row with `met: false`, not a failure.
 */
import { writeFileSync } from 'node:fs';
import { cpus, loadavg, release, totalmem } from 'node:os';
import { formatTable, type Row } from '../bench/rows.ts';
import { TOPICS } from '../bench/topics.ts';
import { findUnknown, readArguments } from './arguments.ts';

const say = (line: string): void => {
  process.stdout.write(`${line}\n`);
};

const usage = (): string =>
  [
    'usage: npm run bench -- TOPIC... [--out FILE]',
    ...Object.entries(TOPICS).map(([name, { about }]) => `  ${name.padEnd(12)}${about}`),
  ].join('\n');

const describeMachine = (): Readonly<Record<string, unknown>> => ({
  node: process.versions.node,
  kernel: release(),
  cpu: cpus()[0]?.model.trim() ?? 'unknown',
  cpus: cpus().length,
  memoryMiB: Math.round(totalmem() / 2 ** 20),
  load1: loadavg()[0],
});

const main = async (): Promise<number> => {
  const { values, words } = readArguments(
    { options: { out: { type: 'string' } }, usage: usage() },
    (names) => (names.length === 0 ? 'no topic is named' : findUnknown('topic', names, Object.keys(TOPICS))),
  );
  const topics = words.map((name) => [name, TOPICS[name]] as const);
  const machine = describeMachine();
  say(
    Object.entries(machine)
      .map(([name, value]) => `${name} ${value}`)
      .join(', '),
  );
  const results: { topic: string; rows: readonly Row[] }[] = [];
  for (const [name, topic] of topics) {
    if (topic === undefined) continue;
    const rows = await topic.run(say);
    say(`\n${name}: medians; by turns in one run\n${formatTable(rows)}`);
    results.push({ topic: name, rows });
  }
  const json = JSON.stringify({ machine, results }, null, 2);
  if (values.out === undefined) say(`\n${json}`);
  else writeFileSync(values.out, `${json}\n`);
  return 0;
};

process.exitCode = await main();
