/** A program of ours that answers each line on its standard input with one on its standard output. */
import { type ChildProcessByStdio, spawn } from 'node:child_process';
import type { Readable, Writable } from 'node:stream';
import { errnoOf, XceError } from '../base/errors.ts';
import { CHILD_ENV } from './spawn.ts';

export type LineProcess = {
  readonly pid: number;
  /**
   * One line, one answer; one at a time. Throws XceError 'os' when the program has ended, and kills it when its answer
   * is late or too long: it must not be taken for the answer to another line.
   */
  ask(line: string, timeoutMs: number): Promise<string>;
  /** By SIGKILL; resolves when it is gone. Idempotent. */
  kill(): Promise<void>;
};

const LINE_BYTES_MAX = 1 << 20;

/** Cuts a stream into lines; each goes to who asks. */
class Answers {
  #rest = '';
  #settle: ((line: string | undefined) => void) | undefined;

  push(text: string): void {
    this.#rest += text;
    const end = this.#rest.indexOf('\n');
    if (end === -1) {
      if (this.#rest.length > LINE_BYTES_MAX) this.finish();
      return;
    }
    const line = this.#rest.slice(0, end);
    this.#rest = this.#rest.slice(end + 1);
    this.#settle?.(line);
  }

  /** There will be no more. */
  finish(): void {
    this.#settle?.(undefined);
  }

  next(): Promise<string | undefined> {
    return new Promise((resolve) => {
      this.#settle = resolve;
    });
  }
}

const started = (
  child: ChildProcessByStdio<Writable, Readable, null>,
  argv: readonly string[],
): Promise<number> =>
  new Promise((resolve, reject) => {
    child.once('spawn', () => resolve(child.pid ?? -1));
    child.once('error', (error) =>
      reject(
        new XceError('os', `cannot start ${argv.join(' ')}: ${errnoOf(error) ?? error.message}`, {
          cause: error,
        }),
      ),
    );
  });

/** Starts a program with a fixed environment; it ends by itself when its input does, as it does with this process. */
export const startLineProcess = async (argv: readonly [string, ...string[]]): Promise<LineProcess> => {
  const [file, ...words] = argv;
  const child = spawn(file, words, {
    env: CHILD_ENV,
    cwd: '/',
    stdio: ['pipe', 'pipe', 'inherit'],
  });
  const ended = new Promise<void>((resolve) => child.once('close', () => resolve()));
  const answers = new Answers();
  let isOver = false;
  child.once('close', () => {
    isOver = true;
    answers.finish();
  });
  // That nobody reads is told by the end of the program.
  child.stdin.on('error', () => undefined);
  child.stdout.setEncoding('utf8');
  child.stdout.on('data', (text: string) => answers.push(text));
  const pid = await started(child, argv);
  return {
    pid,
    ask: async (line, timeoutMs) => {
      const answer = answers.next();
      if (isOver) answers.finish();
      else child.stdin.write(`${line}\n`);
      let timer: NodeJS.Timeout | undefined;
      const late = new Promise<undefined>((resolve) => {
        timer = setTimeout(resolve, timeoutMs, undefined);
      });
      const text = await Promise.race([answer, late]);
      clearTimeout(timer);
      if (text !== undefined) return text;
      const error = new XceError('os', `process ${pid} of ours ${isOver ? 'has ended' : 'gives no answer'}`);
      isOver = true;
      child.kill('SIGKILL');
      throw error;
    },
    kill: async () => {
      child.kill('SIGKILL');
      await ended;
    },
  };
};

/** Answers each line of standard input with one on standard output, until it ends. */
export const serveLines = async (answer: (line: string) => Promise<string>): Promise<void> => {
  let rest = '';
  for await (const chunk of process.stdin.setEncoding('utf8')) {
    rest += String(chunk);
    for (let end = rest.indexOf('\n'); end !== -1; end = rest.indexOf('\n')) {
      const line = rest.slice(0, end);
      rest = rest.slice(end + 1);
      process.stdout.write(`${await answer(line)}\n`);
    }
  }
};
