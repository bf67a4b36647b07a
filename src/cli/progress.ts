/**
 * Progress of work that takes longer than a look: spinners on a terminal, one plain line per phase elsewhere,
 * nothing with --json.
 */
import { assert } from '../base/errors.ts';
import type { Progress } from '../operations/progress.ts';
import { isTerminal, writeTalk } from './print.ts';

export const plain = (write: (line: string) => void): Progress => ({
  phase: async (title, work) => {
    const started = process.hrtime.bigint();
    const seconds = (): string => (Number(process.hrtime.bigint() - started) / 1e9).toFixed(1);
    /** What has not moved since is not told again. */
    let last: string | undefined;
    write(`${title} ...`);
    try {
      const result = await work((text) => {
        if (text === last) return;
        last = text;
        write(`${title}: ${text}`);
      });
      write(`${title}: done in ${seconds()} s`);
      return result;
    } catch (error) {
      write(`${title}: failed after ${seconds()} s`);
      throw error;
    }
  },
});

const spinner: Progress = {
  phase: async (title, work) => {
    const { Listr } = await import('listr2');
    let finished: { readonly result: Awaited<ReturnType<typeof work>> } | undefined;
    const task = {
      title,
      task: async (_: unknown, row: { output: string }) => {
        const update = (text: string): void => {
          row.output = text;
        };
        finished = { result: await work(update) };
      },
    };
    // Signals are for the command to handle: its first Ctrl-C may be a question.
    await new Listr([task], { registerSignalListeners: false }).run();
    assert(finished !== undefined, 'a phase that did not throw has a result');
    return finished.result;
  },
};

export const silent: Progress = { phase: (_, work) => work(() => undefined) };

/** listr2 draws on stdout, so its spinners are for the case where both streams are the operator's terminal. */
export const chooseProgress = (json: boolean): Progress => {
  if (json) return silent;
  if (isTerminal(2) && isTerminal(1)) return spinner;
  return plain((line) => writeTalk(`${new Date().toISOString()} ${line}\n`));
};
