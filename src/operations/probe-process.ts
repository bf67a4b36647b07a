/** The second process of a host in a probe: a program of ours that is told what to do line by line. */
import { join } from 'node:path';
import { startLineProcess } from '../os/line-process.ts';
import { findPackage } from '../os/package-root.ts';
import { decodeResponse, decodeWireError } from '../rpc/decode.ts';
import type { SecondProcess } from '../wal/probe-action.ts';

/** Longer than any wait for a lock. */
const ANSWER_MS_MAX = 30_000;
/** An answer that is an error begins with this; the others are documents. */
export const ERROR_MARK = '!';

/** What runs the program, without its arguments. */
export const probeProgram = (): readonly [string, string] => [
  process.execPath,
  join(findPackage(import.meta.filename).root, 'dist', 'probe-process.cjs'),
];

export const startProbeProcess = async (
  program: readonly [string, ...string[]],
  directory: string,
  probe: string,
): Promise<SecondProcess> => {
  const child = await startLineProcess([...program, directory, probe]);
  return {
    perform: async (actions) => {
      const line = await child.ask(JSON.stringify({ probe, by: 'second', actions }), ANSWER_MS_MAX);
      if (line.startsWith(ERROR_MARK)) throw decodeWireError(Buffer.from(line.slice(ERROR_MARK.length)));
      return decodeResponse('probe-act', Buffer.from(line)).results;
    },
    kill: child.kill,
  };
};
