/**
 * The other end for the tests that kill it: `server PATH` serves endless output on a Unix socket, `client PATH`
 * opens a stream there and reads. Both say READY on stdout once bytes flow. `strays PATH` serves verbs that forget an
 * error which nobody catches, writes what is reported a line each, and throws outside of any request when told to.
 */
import { EventEmitter, once } from 'node:events';
import { Readable } from 'node:stream';
import { messageOf, XceError } from '../../../src/base/errors.ts';
import { catchStrays } from '../../../src/os/scope.ts';
import { connectUnix } from '../../../src/rpc/client.ts';
import { createServer } from '../../../src/rpc/server.ts';
import { ANSWERS, STEP, SUCCESS, startServer } from './site.ts';

const [mode, path = ''] = process.argv.slice(2);

if (mode === 'server') {
  const { server } = startServer({
    step: {
      callers: ['local-root'],
      serve: async (_peer, _head, stream) => {
        await stream.sendEvent({ event: 'started', unit: 'endless' });
        const endless = new Readable({
          read() {
            this.push(Buffer.alloc(1024));
          },
        });
        await stream.pump('stdout', endless);
        await stream.sendEvent({ event: 'ended', outcome: SUCCESS });
      },
    },
    stop: { callers: ['local-root'], answer: () => new Promise(() => undefined) },
  });
  await server.listenRoot({ path });
  console.log('READY');
} else if (mode === 'strays') {
  catchStrays((error) => {
    console.log(`stray: ${messageOf(error)}`);
    process.exit(70);
  });
  const forgotten = async (what: string): Promise<never> => {
    await new Promise((resolve) => setImmediate(resolve));
    throw new XceError('io', what);
  };
  const server = createServer({
    table: {
      renew: {
        callers: ['local-root'],
        subject: () => ({ act: 'renew lease 7', lease: 7 }),
        answer: () => {
          void forgotten('a promise');
          return new Promise(() => undefined);
        },
      },
      stop: {
        callers: ['local-root'],
        answer: async () => {
          setTimeout(() => {
            throw new Error('a timer');
          });
          return new Promise(() => undefined);
        },
      },
      drain: {
        callers: ['local-root'],
        answer: async () => {
          void forgotten('too late');
          return { certificate: 'xcc1.a.b' };
        },
      },
      step: {
        callers: ['local-root'],
        serve: async (_peer, _head, stream) => {
          await stream.sendEvent({ event: 'started', unit: 'u' });
          setImmediate(() => new EventEmitter().emit('error', new Error('an event')));
          await once(stream.signal, 'abort');
          console.log(`told: ${messageOf(stream.signal.reason)}`);
        },
      },
      status: { callers: ['local-root'], answer: async () => ANSWERS.status },
    },
    report: (report) => {
      const text =
        report.what === 'bug' ? `${report.subject?.act ?? report.verb}: ${messageOf(report.error)}` : '';
      console.log(`${report.what}: ${text}`);
    },
  });
  await server.listenRoot({ path });
  console.log('READY');
  process.on('SIGUSR2', () => void forgotten('outside'));
} else {
  const session = await connectUnix(path, { timeoutMs: 10_000 });
  const stream = await session.stream('step', STEP, { timeoutMs: 10_000 });
  let said = false;
  for await (const frame of stream) {
    if (!said && frame.channel === 'stdout') console.log('READY');
    said ||= frame.channel === 'stdout';
  }
}
