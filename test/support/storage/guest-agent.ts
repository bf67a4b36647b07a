/** The one program that init of a guest runs: starts what the owner asks for. Its serial line is descriptor 3. */
import { type ChildProcess, spawn } from 'node:child_process';
import { createReadStream, writeSync } from 'node:fs';
import { encodeFrame, type GuestReply, type GuestRequest, Lines } from './guest-protocol.ts';

const SERIAL_LINE = 3;
const DATA_BYTES_MAX = 8192;

const send = (reply: GuestReply): void => {
  const bytes = Buffer.from(encodeFrame(reply));
  for (let done = 0; done < bytes.length; ) done += writeSync(SERIAL_LINE, bytes, done);
};

const running = new Map<number, ChildProcess>();

const start = (id: number, [file = '', ...argv]: readonly string[]): void => {
  const child = spawn(file, argv, { stdio: ['ignore', 'pipe', 'pipe'], detached: true, cwd: '/' });
  const { pid } = child;
  if (pid === undefined) {
    child.once('error', (error) => send({ id, op: 'failed', reason: error.message }));
    return;
  }
  running.set(id, child);
  send({ id, op: 'started', pid });
  for (const op of ['stdout', 'stderr'] as const) {
    child[op].on('data', (bytes: Buffer) => {
      for (let from = 0; from < bytes.length; from += DATA_BYTES_MAX) {
        send({ id, op, data: bytes.subarray(from, from + DATA_BYTES_MAX).toString('base64') });
      }
    });
  }
  child.once('close', (code, signal) => {
    running.delete(id);
    send({ id, op: 'end', code, signal });
  });
};

const kill = (id: number, signal: NodeJS.Signals): void => {
  const pid = running.get(id)?.pid;
  if (pid === undefined) return;
  try {
    process.kill(-pid, signal);
  } catch (error) {
    // ended in between: its end is on the way
    if (!(error instanceof Error && 'code' in error && error.code === 'ESRCH')) throw error;
  }
};

const lines = new Lines();
createReadStream('', { fd: SERIAL_LINE, autoClose: false }).on('data', (piece) => {
  for (const line of lines.push(Buffer.from(piece))) {
    const request: GuestRequest = JSON.parse(line);
    if (request.op === 'start') start(request.id, request.argv);
    else kill(request.id, request.signal);
  }
});
send({ op: 'ready' });
