/** The second process of a probe, run from the source. */
import { createRequire } from 'node:module';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { startProbeProcess } from '../../src/operations/probe-process.ts';
import type { SecondProcess } from '../../src/wal/probe-action.ts';

const program = [
  process.execPath,
  '--import',
  pathToFileURL(createRequire(import.meta.url).resolve('tsx')).href,
  fileURLToPath(new URL('../../src/operations/probe-process-main.ts', import.meta.url)),
] as const;

export const startSecond = (directory: string, probe: string): Promise<SecondProcess> =>
  startProbeProcess(program, directory, probe);
