/** Start-up: what each command costs beside `node -e 0`, which is the floor for anything on Node. */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { mustRun } from '../support/cluster/process.ts';
import { repositoryDirectory } from '../support/cluster/product.ts';
import { type Command, interleave, measureOnce, type Usage } from './measure.ts';
import { type Goal, makeRow, type Row } from './rows.ts';

const ROUNDS = 15;

type Case = {
  readonly name: string;
  readonly argv: readonly string[];
  /** On the CPU time; wall time and memory are shown without one. */
  readonly goal: Goal | null;
};

const PEER: Command = { argv: [process.execPath, '-e', '0'] };
const PEER_NAME = 'node -e 0';
const program = join(repositoryDirectory, 'bin/xce-sandbox');

const CASES: readonly Case[] = [{ name: '--version', argv: ['--version'], goal: null }];

const NUMBERS = [
  { unit: 'ms CPU', of: (usage: Usage) => usage.cpuMs },
  { unit: 'ms wall', of: (usage: Usage) => usage.wallMs },
  { unit: 'MiB peak', of: (usage: Usage) => usage.peakMiB },
] as const;

export const benchStartup = async (report: (line: string) => void): Promise<readonly Row[]> => {
  report('building');
  await mustRun(['npm', 'run', 'build'], { cwd: repositoryDirectory, timeoutMs: 300_000 });
  const directory = mkdtempSync(join(tmpdir(), 'xce-sandbox-bench-'));
  try {
    const rows: Row[] = [];
    for (const { name, argv, goal } of CASES) {
      report(`${name}: ${ROUNDS} rounds`);
      const subject: Command = { argv: [process.execPath, program, ...argv], cwd: directory };
      const runs = await interleave(
        ROUNDS,
        () => measureOnce(subject),
        () => measureOnce(PEER),
      );
      NUMBERS.forEach(({ unit, of }, index) => {
        const [values, peerValues] = [runs.subject.map(of), runs.peer.map(of)];
        rows.push(
          makeRow({ name, unit, values, peer: PEER_NAME, peerValues, goal: index === 0 ? goal : null }),
        );
      });
    }
    return rows;
  } finally {
    rmSync(directory, { recursive: true, force: true });
  }
};
