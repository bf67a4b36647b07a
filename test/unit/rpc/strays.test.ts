/** Errors that a request, or nothing, has begun and nobody catches, in a server that is a process of its own. */
import { type ChildProcessByStdio, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import type { Readable } from 'node:stream';
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { connectUnix } from '../../../src/rpc/client.ts';
import type { RpcSession } from '../../../src/rpc/session.ts';
import { ANSWERS, REQUESTS, refusalOf, refusedCode, STEP } from './site.ts';

const T = { timeoutMs: 20_000 };

let root: string;
let child: ChildProcessByStdio<null, Readable, null>;
let session: RpcSession;
const said: string[] = [];
const listeners = new Set<() => void>();

/** Resolves once the process has said the line. */
const untilSaid = (line: string): Promise<void> =>
  new Promise((resolve) => {
    const look = (): void => {
      if (!said.includes(line)) return;
      listeners.delete(look);
      resolve();
    };
    listeners.add(look);
    look();
  });

beforeAll(async () => {
  root = mkdtempSync(join(tmpdir(), 'strays-'));
  const path = join(root, 's.sock');
  const program = fileURLToPath(new URL('peer-program.ts', import.meta.url));
  child = spawn(process.execPath, ['--import', 'tsx', program, 'strays', path], {
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  createInterface({ input: child.stdout }).on('line', (line) => {
    said.push(line);
    for (const look of listeners) look();
  });
  await untilSaid('READY');
  session = await connectUnix(path, T);
}, 60_000);
afterAll(() => {
  session?.close();
  child?.kill('SIGKILL');
  rmSync(root, { recursive: true });
});

test('a promise that a request forgot fails it with bug, and is reported with what the request was about', async () => {
  const error = await refusalOf(session.call('renew', REQUESTS.renew, T));
  expect([error.code, error.exitStatus]).toEqual(['bug', 70]);
  // What went wrong inside is for the journal alone.
  expect(error.message).not.toContain('a promise');
  await untilSaid('bug: renew lease 7: a promise');
});

test('so does an exception in a timer', async () => {
  expect(await refusedCode(session.call('stop', REQUESTS.stop, T))).toBe('bug');
  await untilSaid('bug: stop: a timer');
});

test('and an event of error that nobody listens to ends its stream, whose handler is told', async () => {
  const stream = await session.stream('step', STEP, T);
  const reading = (async () => {
    for await (const _frame of stream);
  })();
  expect(await refusedCode(reading)).toBe('bug');
  await untilSaid('bug: step: an event');
  await untilSaid('told: the handler failed');
});

test('one that comes after the answer changes nothing but the log', async () => {
  expect(await session.call('drain', REQUESTS.drain, T)).toEqual({ certificate: 'xcc1.a.b' });
  await untilSaid('bug: drain: too late');
  expect(await session.call('status', {}, T)).toEqual(ANSWERS.status);
});

test('one that no request has begun ends the process, with the status of a bug', async () => {
  child.kill('SIGUSR2');
  const [status] = await once(child, 'close');
  expect(status).toBe(70);
  expect(said.at(-1)).toBe('stray: outside');
});
