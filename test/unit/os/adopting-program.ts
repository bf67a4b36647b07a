/** Adopts what systemd passed, as a worker would, and says on stdout what came of it. */
import { readFileSync } from 'node:fs';
import { adoptSockets, listenTls, listenUnix } from '../../../src/os/sockets.ts';

const adopted = adoptSockets(process.env);
const flagsOf = (fd: number): string =>
  /flags:\s+(\d+)/.exec(readFileSync(`/proc/self/fdinfo/${fd}`, 'latin1'))?.[1] ?? '';
const O_CLOEXEC = 0o2000000;

const closedOnExec = [...adopted.values()].every((fd) => (Number.parseInt(flagsOf(fd), 8) & O_CLOEXEC) !== 0);

const tried: Record<string, string> = {};
for (const [name, fd] of adopted) {
  try {
    const listener = name.startsWith('tls')
      ? await listenTls(
          { fd },
          { authorityPem: '', revocationsPem: '', certificatePem: '', keyPem: '' },
          {
            connectionsMax: 1,
            handshakeMs: 1,
            onSocket: () => undefined,
            onHandshakeFailed: () => undefined,
          },
        )
      : await listenUnix({ fd }, { connectionsMax: 1, onSocket: () => undefined });
    tried[name] = listener.port === 0 ? 'unix' : 'tcp';
    void listener.close();
  } catch (error) {
    tried[name] = error instanceof Error ? error.message : String(error);
  }
}
console.log(
  JSON.stringify({
    fds: Object.fromEntries(adopted),
    closedOnExec,
    tried,
    left: Object.keys(process.env).filter((name) => name.startsWith('LISTEN_')),
  }),
);
