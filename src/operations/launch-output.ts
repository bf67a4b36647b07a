/** The files of `launch --output` and `--error`: named before anything is asked, opened when every node is ready. */
import { XceError } from '../base/errors.ts';
import type { Place } from '../launch/outcome.ts';
import type { OutputStream, Writer } from '../launch/output.ts';
import { fillOutputPattern, type OutputPattern } from '../launch/output-name.ts';
import { type OpenMode, type OutputFile, openOutputFile } from '../os/output-file.ts';

export type OutputChoice = {
  readonly stdout: OutputPattern | undefined;
  /** undefined: where stdout goes, if that is a file. */
  readonly stderr: OutputPattern | undefined;
  readonly mode: OpenMode;
};

/** Files that are open at the same time. */
const FILES_MAX = 4096;

const keyOf = (stream: OutputStream, { node, task }: Place): string => `${stream} ${node} ${task}`;

/** Which file a stream of a place goes to; streams that are in no file are not there. */
export type OutputPlan = {
  readonly mode: OpenMode;
  readonly streams: readonly OutputStream[];
  readonly names: ReadonlyMap<string, string>;
};

/** Throws 'output-file' or 'usage'. */
export const planOutput = (
  { stdout, stderr = stdout, mode }: OutputChoice,
  job: { readonly job: string; readonly attempt: number },
  places: readonly Place[],
): OutputPlan => {
  const patterns = { stdout, stderr } as const;
  const streams = (['stdout', 'stderr'] as const).filter((stream) => patterns[stream] !== undefined);
  const names = new Map<string, string>();
  for (const stream of streams) {
    const pattern = patterns[stream];
    if (pattern === undefined) continue;
    for (const place of places) {
      names.set(keyOf(stream, place), fillOutputPattern(pattern, { ...job, ...place }));
    }
  }
  const count = new Set(names.values()).size;
  if (count > FILES_MAX) {
    throw new XceError('usage', `the output would go to ${count} files; the limit is ${FILES_MAX}`, {
      next: 'give a name without %t or %n',
    });
  }
  return { mode, streams, names };
};

export type OpenOutput = {
  readonly writers: Readonly<Partial<Record<OutputStream, Writer>>>;
  /** Throws the first failure of a file, after every file is closed. */
  close(): Promise<void>;
};

const eachOf = async (
  files: ReadonlyMap<string, OutputFile>,
  act: (file: OutputFile) => Promise<void>,
): Promise<void> => {
  const results = await Promise.allSettled([...files.values()].map(act));
  for (const result of results) if (result.status === 'rejected') throw result.reason;
};

/** Opens every file, or none: throws 'output-file'. */
export const openOutput = async ({ mode, streams, names }: OutputPlan): Promise<OpenOutput> => {
  const files = new Map<string, OutputFile>();
  try {
    for (const name of new Set(names.values())) files.set(name, await openOutputFile(name, mode));
  } catch (error) {
    await eachOf(files, (file) => file.discard());
    throw error;
  }
  const writerOf =
    (stream: OutputStream): Writer =>
    async (bytes, place) => {
      const file = files.get(names.get(keyOf(stream, place)) ?? '');
      if (file === undefined) throw new XceError('bug', 'each place of a launch has its file');
      await file.write(bytes);
    };
  return {
    writers: Object.fromEntries(streams.map((stream) => [stream, writerOf(stream)])),
    close: () => eachOf(files, (file) => file.close()),
  };
};
