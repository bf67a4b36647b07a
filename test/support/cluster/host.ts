/**
 * What the harness needs of the machine it runs on: packages, one lock per thing that is made once, mounts and
 * cgroup hierarchies (a pure cgroup2 host as well as one with cgroup2 beside named v1 hierarchies).
 */
import { spawn } from 'node:child_process';
import { accessSync, constants, existsSync, mkdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { mustRun, run } from './process.ts';

export const cacheDirectory = (): string =>
  process.env['XCE_SANDBOX_TEST_CACHE'] ?? '/var/cache/xce-sandbox-test';

export const requireRoot = (): void => {
  if (process.getuid?.() !== 0) throw new Error('nodes can only be booted as root');
};

const onPath = (program: string): boolean =>
  (process.env['PATH'] ?? '')
    .split(':')
    .concat('/usr/sbin', '/sbin')
    .some((directory) => {
      try {
        accessSync(join(directory, program), constants.X_OK);
        return true;
      } catch {
        return false; // the next directory may have it
      }
    });

/** A program each, and the Debian package that has it. */
const PROGRAMS = {
  nodes: {
    debootstrap: 'debootstrap',
    'systemd-nspawn': 'systemd-container',
    ip: 'iproute2',
    nsenter: 'util-linux',
    mount: 'mount',
  },
  tests: {
    fish: 'fish',
    bindfs: 'bindfs',
    fusermount3: 'fuse3',
    mandoc: 'mandoc',
    gcc: 'gcc',
    'mkfs.ext4': 'e2fsprogs',
    'mkfs.xfs': 'xfsprogs',
    openssl: 'openssl',
    perl: 'perl',
    setpriv: 'util-linux',
    setcap: 'libcap2-bin',
    setfacl: 'acl',
    setfattr: 'attr',
    zsh: 'zsh',
  },
} as const;

/** Installs what is missing, for booting nodes or for the tests that run on the host itself. */
export const installHostPackages = async (purpose: keyof typeof PROGRAMS): Promise<void> => {
  const findMissing = (): readonly string[] =>
    Object.entries(PROGRAMS[purpose]).flatMap(([program, name]) => (onPath(program) ? [] : [name]));
  const missing = findMissing();
  if (missing.length === 0) return;
  const apt = ['env', 'DEBIAN_FRONTEND=noninteractive', 'apt-get'];
  const install = [...apt, 'install', '-y', '--no-install-recommends', ...missing];
  const first = await run(install, { timeoutMs: 600_000 });
  if (first.exitCode !== 0) {
    await mustRun(['apt-get', 'update'], { timeoutMs: 300_000 });
    await mustRun(install, { timeoutMs: 600_000 });
  }
  const still = findMissing();
  if (still.length > 0)
    throw new Error(`after apt-get install ${missing.join(' ')}, ${still.join(' ')} is missing`);
};

/**
 * Runs `work` while no other process of this machine runs it under the same name. The lock is held by a flock(1)
 * child that ends when this process does, however it ends.
 */
export const withLock = async <T>(name: string, timeoutMs: number, work: () => Promise<T>): Promise<T> => {
  mkdirSync(join(cacheDirectory(), 'locks'), { recursive: true });
  const seconds = Math.ceil(timeoutMs / 1000);
  const file = join(cacheDirectory(), 'locks', name);
  const holder = spawn(
    'flock',
    ['-w', String(seconds), file, 'sh', '-c', 'echo locked; exec cat >/dev/null'],
    {
      stdio: ['pipe', 'pipe', 'inherit'],
      detached: true, // a Ctrl-C at the terminal must not free the lock before the work has stopped
    },
  );
  const ended = new Promise<void>((resolve) => holder.once('close', () => resolve()));
  await new Promise<void>((resolve, reject) => {
    holder.once('error', reject);
    holder.stdout.once('data', () => resolve());
    holder.once('close', () => reject(new Error(`another run holds ${file} for more than ${seconds} s`)));
  });
  try {
    return await work();
  } finally {
    holder.stdin.end();
    await ended;
  }
};

type MountEntry = { readonly point: string; readonly kind: string; readonly superOptions: string };

/** mountinfo in mount order; octal escapes undone (proc(5)). */
export const readMounts = (): readonly MountEntry[] =>
  readFileSync('/proc/self/mountinfo', 'latin1')
    .split('\n')
    .filter((line) => line !== '')
    .map((line) => {
      const [before, after] = line.split(' - ');
      const point = (before ?? '').split(' ')[4] ?? '';
      const rest = (after ?? '').split(' ');
      return {
        point: point.replace(/\\([0-7]{3})/g, (_, octal: string) =>
          String.fromCharCode(Number.parseInt(octal, 8)),
        ),
        kind: rest[0] ?? '',
        superOptions: rest[2] ?? '',
      };
    });

/**
 * Mount points of the hierarchies a booted systemd uses: the cgroup2 one first, and the v1 hierarchy named
 * `systemd` where the host has it beside.
 */
export const readCgroupRoots = (): readonly string[] => {
  const mounts = readMounts().filter(({ point }) => existsSync(point));
  const unified = mounts.find(({ kind }) => kind === 'cgroup2');
  if (unified === undefined) throw new Error('no cgroup2 hierarchy is mounted on this machine');
  const named = mounts.find(
    ({ kind, superOptions }) => kind === 'cgroup' && superOptions.split(',').includes('name=systemd'),
  );
  return named === undefined ? [unified.point] : [unified.point, named.point];
};
