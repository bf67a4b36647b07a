import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { chmodSync, mkdtempSync, rmSync } from 'node:fs';
import { connect, createServer, type Server, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { XceError } from '../../../src/base/errors.ts';
import { readPeerCredentials } from '../../../src/os/peer.ts';

let root: string;
let server: Server;
let path: string;

beforeAll(async () => {
  root = mkdtempSync(join(tmpdir(), 'peer-'));
  chmodSync(root, 0o711);
  path = join(root, 'socket');
  server = createServer();
  server.listen(path);
  await once(server, 'listening');
  chmodSync(path, 0o666);
});
afterAll(() => {
  server.close();
  rmSync(root, { recursive: true });
});

const accept = async (): Promise<Socket> => {
  const [socket] = (await once(server, 'connection')) as [Socket];
  return socket;
};

const codeOf = (run: () => unknown): string => {
  try {
    run();
  } catch (error) {
    if (error instanceof XceError) return error.code;
    throw error;
  }
  return 'no error';
};

describe('the credentials of a peer', () => {
  test('are those of the process that connected', async () => {
    const accepted = accept();
    const client = connect(path);
    const socket = await accepted;
    expect(readPeerCredentials(socket)).toEqual({ pid: process.pid, uid: 0, gid: 0 });
    client.destroy();
    socket.destroy();
  });

  test('of another process with large ids are read without a sign', async () => {
    const accepted = accept();
    const child = spawn(
      'setpriv',
      [
        '--reuid=4000000000',
        '--regid=3000000000',
        '--clear-groups',
        'perl',
        '-MIO::Socket::UNIX',
        '-e',
        'my $s = IO::Socket::UNIX->new(Peer => $ARGV[0]) or die; <$s>',
        path,
      ],
      { stdio: ['ignore', 'ignore', 'inherit'] },
    );
    const socket = await accepted;
    expect(readPeerCredentials(socket)).toEqual({ pid: child.pid, uid: 4_000_000_000, gid: 3_000_000_000 });
    socket.destroy();
    await once(child, 'exit');
  });

  test('cannot be read from a socket that is closed, or is not of the Unix domain', async () => {
    const accepted = accept();
    const client = connect(path);
    const socket = await accepted;
    socket.destroy();
    expect(codeOf(() => readPeerCredentials(socket))).toBe('peer-unknown');
    client.destroy();

    const tcp = createServer();
    tcp.listen(0, '127.0.0.1');
    await once(tcp, 'listening');
    const address = tcp.address();
    const arrived = once(tcp, 'connection');
    const far = connect(typeof address === 'object' && address !== null ? address.port : 0, '127.0.0.1');
    const [near] = (await arrived) as [Socket];
    expect(codeOf(() => readPeerCredentials(near))).toBe('peer-unknown');
    near.destroy();
    far.destroy();
    tcp.close();
  });
});
