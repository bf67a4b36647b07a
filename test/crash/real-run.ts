/** Controllers as processes of their own (real-process.ts), and what they said was acknowledged. */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { createRequire } from 'node:module';
import { createInterface } from 'node:readline';
import { fileURLToPath, pathToFileURL } from 'node:url';
import type { RealPlace } from './real-log.ts';
import type { Grants } from './world.ts';

const PROGRAM = fileURLToPath(new URL('./real-process.ts', import.meta.url));
const TSX = pathToFileURL(createRequire(import.meta.url).resolve('tsx')).href;

export type RealRun = {
  /** Uids by name, as far as the process has said that they were acknowledged. */
  readonly acknowledged: ReadonlyMap<string, number>;
  /** Its last word, or 'killed'. */
  readonly ended: Promise<string>;
  /** When so many were acknowledged, or the process has ended. */
  granted(count: number): Promise<void>;
  signal(name: NodeJS.Signals): void;
};

/** Starts a controller that grants `count` uids, or as many as it can. */
export const startController = (place: RealPlace, prefix: string, count: number): RealRun => {
  const argv = ['--import', TSX, PROGRAM, JSON.stringify(place), prefix, String(count)];
  const child = spawn(process.execPath, argv, { stdio: ['ignore', 'pipe', 'inherit'] });
  const acknowledged = new Map<string, number>();
  let last = 'killed';
  let hasEnded = false;
  let wake: () => void = () => undefined;
  createInterface(child.stdout).on('line', (line) => {
    const [by, uid] = line.split(' ');
    if (by !== undefined && uid !== undefined) acknowledged.set(by, Number(uid));
    else last = line;
    wake();
  });
  const ended = once(child, 'close').then(() => {
    hasEnded = true;
    wake();
    return last;
  });
  return {
    acknowledged,
    ended,
    granted: async (wanted) => {
      while (acknowledged.size < wanted && !hasEnded) {
        await new Promise<void>((resolve) => {
          wake = resolve;
        });
      }
    },
    signal: (name) => child.kill(name),
  };
};

/** Grants that were acknowledged and are not whole in the state under their uid, and uids acknowledged twice. */
export const findMissing = (state: Grants, runs: readonly RealRun[]): readonly string[] => {
  const missing: string[] = [];
  const holders = new Map<number, string>();
  for (const [by, uid] of runs.flatMap(({ acknowledged }) => [...acknowledged])) {
    const grant = state.get(uid);
    if (grant?.by !== by || !grant.isWhole)
      missing.push(`${by} was acknowledged ${uid} and does not have it`);
    const other = holders.get(uid);
    if (other !== undefined) missing.push(`${uid} was acknowledged to ${other} and to ${by}`);
    holders.set(uid, by);
  }
  return missing;
};
