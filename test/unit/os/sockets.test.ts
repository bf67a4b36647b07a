import { execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import {
  chmodSync,
  chownSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { connect } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { XceError } from '../../../src/base/errors.ts';
import { adoptSockets, connectUnixSocket, type Listener, listenUnix } from '../../../src/os/sockets.ts';

let root: string;

beforeAll(() => {
  root = mkdtempSync(join(tmpdir(), 'sockets-'));
});
afterAll(() => rmSync(root, { recursive: true }));

const rejectedCode = async (promise: Promise<unknown>): Promise<string> => {
  try {
    await promise;
  } catch (error) {
    if (error instanceof XceError) return error.code;
    throw error;
  }
  return 'no error';
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

const listen = (path: string, mode = 0o600): Promise<Listener> =>
  listenUnix({ path, mode }, { connectionsMax: 10, onSocket: (socket) => socket.destroy() });

/** A socket whose listener was killed, as a crashed worker leaves it. */
const leaveStale = async (path: string): Promise<void> => {
  const child = spawn('perl', [
    '-MIO::Socket::UNIX',
    '-e',
    'my $s = IO::Socket::UNIX->new(Local => $ARGV[0], Listen => 1) or die; kill 9, $$',
    path,
  ]);
  await once(child, 'exit');
};

describe('a Unix socket', () => {
  test('gets its mode whatever the umask says, and is gone after the close', async () => {
    const path = join(root, 'mode');
    const before = process.umask(0);
    const listener = await listen(path, 0o640);
    process.umask(before);
    expect(statSync(path).mode & 0o7777).toBe(0o640);
    await listener.close();
    expect(existsSync(path)).toBe(false);
    await listener.close();
  });

  test('takes the place of one that a dead process left', async () => {
    const path = join(root, 'stale');
    await leaveStale(path);
    expect(statSync(path).isSocket()).toBe(true);
    const listener = await listen(path);
    (await connectUnixSocket(path, { timeoutMs: 5000 })).destroy();
    await listener.close();
  });

  test('never takes the place of one that answers', async () => {
    const path = join(root, 'alive');
    const listener = await listen(path);
    expect(await rejectedCode(listen(path))).toBe('sandbox-exists');
    (await connectUnixSocket(path, { timeoutMs: 5000 })).destroy();
    await listener.close();
  });

  test('never takes the place of anything else', async () => {
    const file = join(root, 'file');
    writeFileSync(file, 'x');
    const link = join(root, 'link');
    symlinkSync('/nowhere', link);
    const theirs = join(root, 'theirs');
    await leaveStale(theirs);
    chownSync(theirs, 70_001, 70_001);
    for (const path of [file, link, theirs]) {
      expect(await rejectedCode(listen(path))).toBe('sandbox-exists');
    }
    expect(statSync(file).size).toBe(1);
    expect(statSync(theirs).uid).toBe(70_001);
    // For the owner that the socket is to have it is a stale one of ours.
    const owner = { uid: 70_001, gid: 70_001 };
    const listener = await listenUnix(
      { path: theirs, mode: 0o600, owner },
      { connectionsMax: 1, onSocket: (socket) => socket.destroy() },
    );
    expect(statSync(theirs)).toMatchObject({ uid: 70_001, gid: 70_001 });
    await listener.close();
  });

  test('lies in no directory that others may write, or that is a link', async () => {
    const open = join(root, 'open');
    mkdirSync(open);
    chmodSync(open, 0o1777);
    expect(await rejectedCode(listen(join(open, 's')))).toBe('config-unsafe');
    const other = join(root, 'other');
    mkdirSync(other);
    chownSync(other, 70_001, 0);
    expect(await rejectedCode(listen(join(other, 's')))).toBe('config-unsafe');
    symlinkSync(root, join(root, 'to-root'));
    expect(await rejectedCode(listen(join(root, 'to-root', 's')))).toBe('config-unsafe');
    expect(await rejectedCode(listen(join(root, 'nowhere', 's')))).toBe('config-unsafe');
  });

  test('has no name that the kernel would cut', async () => {
    const path = join(root, 'x'.repeat(108 - root.length - 1));
    expect(path).toHaveLength(108);
    expect(await rejectedCode(listen(path))).toBe('config-value');
    expect(await rejectedCode(connectUnixSocket(path, { timeoutMs: 100 }))).toBe('config-value');
    const listener = await listen(path.slice(0, 107));
    (await connectUnixSocket(path.slice(0, 107), { timeoutMs: 5000 })).destroy();
    await listener.close();
  });

  test('with a full backlog is tried again until the deadline', async () => {
    const path = join(root, 'full');
    // Listens with room for one, and accepts the rest only when told.
    const child = spawn('perl', [
      '-MIO::Socket::UNIX',
      '-e',
      'my $s = IO::Socket::UNIX->new(Local => $ARGV[0], Listen => 1) or die; listen($s, 0); $| = 1; print "up\\n"; <STDIN>; $s->accept for 1..20',
      path,
    ]);
    await once(child.stdout, 'data');
    const queued = [connect(path), connect(path)];
    for (const socket of queued) socket.on('error', () => undefined);
    await once(queued[0] ?? child, 'connect');
    expect(await rejectedCode(connectUnixSocket(path, { timeoutMs: 100 }))).toBe('worker-unreachable');
    const patient = connectUnixSocket(path, { timeoutMs: 10_000 });
    child.stdin.write('go\n');
    (await patient).destroy();
    for (const socket of queued) socket.destroy();
    child.kill('SIGKILL');
    await once(child, 'exit');
  });
});

describe('sockets passed by systemd', () => {
  const own = String(process.pid);

  test('are none when they are for another process, and the variables are gone', () => {
    for (const environment of [
      {},
      { LISTEN_PID: '1', LISTEN_FDS: '1', LISTEN_FDNAMES: 'tls' },
      { LISTEN_PID: `${own} `, LISTEN_FDS: '1', LISTEN_FDNAMES: 'tls' },
      { LISTEN_PID: own },
    ]) {
      expect(adoptSockets(environment)).toEqual(new Map());
      expect(environment).toEqual({});
    }
  });

  test('go by their names', () => {
    const environment = { LISTEN_PID: own, LISTEN_FDS: '2', LISTEN_FDNAMES: 'tls:local', HOME: '/' };
    expect([...adoptSockets(environment)]).toEqual([
      ['tls', 3],
      ['local', 4],
    ]);
    expect(environment).toEqual({ HOME: '/' });
  });

  test.each([
    ['0', 'tls'],
    ['-1', 'tls'],
    ['1e1', 'tls'],
    ['17', 'tls'],
    ['2', 'tls'],
    ['2', 'tls:tls'],
    ['1', ''],
    ['1', undefined],
  ])('are refused when %s descriptors are named %s', (count, names) => {
    const environment = {
      LISTEN_PID: own,
      LISTEN_FDS: count,
      ...(names === undefined ? {} : { LISTEN_FDNAMES: names }),
    };
    expect(codeOf(() => adoptSockets(environment))).toBe('config-value');
  });

  test('are listened on as what they are, closed on exec, and refused as what they are not', async () => {
    const program = fileURLToPath(new URL('adopting-program.ts', import.meta.url));
    // What systemd does: descriptors from 3 on, and the pid of the process that comes of exec.
    const perl = `
      use IO::Socket::UNIX; use IO::Socket::INET; use POSIX (); use Fcntl;
      my ($dir, @command) = @ARGV;
      my @all = (
        IO::Socket::INET->new(Listen => 5, LocalAddr => '127.0.0.1'),
        IO::Socket::UNIX->new(Local => "$dir/passed", Listen => 5),
        IO::Socket::UNIX->new(Local => "$dir/passed2", Listen => 5),
        IO::Socket::INET->new(Listen => 5, LocalAddr => '127.0.0.1'),
      );
      open(my $null, '<', '/dev/null');
      my @high = map { fcntl($_, F_DUPFD, 20) || die } @all, $null;
      POSIX::dup2($high[$_], 3 + $_) for 0 .. 4;
      $ENV{LISTEN_PID} = $$; $ENV{LISTEN_FDS} = 5; $ENV{LISTEN_FDNAMES} = 'tls:local:tls-wrong:local-wrong:local-null';
      exec(@command);`;
    const { stdout } = await promisify(execFile)(
      'perl',
      ['-e', perl, root, process.execPath, '--import', 'tsx', program],
      {
        timeout: 60_000,
      },
    );
    const said = JSON.parse(stdout) as {
      fds: object;
      closedOnExec: boolean;
      tried: Record<string, string>;
      left: string[];
    };
    expect(said.fds).toEqual({ tls: 3, local: 4, 'tls-wrong': 5, 'local-wrong': 6, 'local-null': 7 });
    expect(said.closedOnExec).toBe(true);
    expect(said.left).toEqual([]);
    expect(said.tried['tls']).toBe('tcp');
    expect(said.tried['local']).toBe('unix');
    expect(said.tried['tls-wrong']).toMatch(/not a TCP socket/);
    expect(said.tried['local-wrong']).toMatch(/not a Unix socket/);
    expect(said.tried['local-null']).toMatch(/cannot listen on descriptor 7/);
  });
});
