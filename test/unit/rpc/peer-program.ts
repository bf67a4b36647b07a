/**
 * The other end for the tests that kill it: `server PATH` serves endless output on a Unix socket, `client PATH`
 * opens a stream there and reads. Both say READY on stdout once bytes flow.
 */
import { Readable } from 'node:stream';
import { connectUnix } from '../../../src/rpc/client.ts';
import { STEP, SUCCESS, startServer } from './site.ts';

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
} else {
  const session = await connectUnix(path, { timeoutMs: 10_000 });
  const stream = await session.stream('step', STEP, { timeoutMs: 10_000 });
  let said = false;
  for await (const frame of stream) {
    if (!said && frame.channel === 'stdout') console.log('READY');
    said ||= frame.channel === 'stdout';
  }
}
