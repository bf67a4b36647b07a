import { chownSync, mkdirSync, rmSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest';
import type { NodeName } from '../../src/base/ids.ts';
import type { Cluster } from '../support/cluster/cluster.ts';
import type { Node } from '../support/cluster/node.ts';
import { baseOf, codeOf, Driver, HOUR_MS, type Lab, nextSpec, openLab, SETTINGS, sh } from './sandbox-lab.ts';

let lab: Lab;
let cluster: Cluster;
let n1: Node;
let driver: Driver;
const create: Lab['create'] = (spec) => lab.create(spec);

beforeAll(async () => {
  lab = await openLab();
  ({ cluster, n1, driver } = lab);
}, 1_800_000);
afterEach(async () => {
  await lab.clear();
});
afterAll(async () => {
  await lab?.close();
}, 120_000);

/** Waits until a step has come as far as its sleep: a step has started when its shell has, not its traps. */
const sleeping = async (uid: number): Promise<void> => {
  await n1.must(sh(`until pgrep -u ${uid} -x sleep; do :; done`));
};

describe('what a step is', () => {
  test('runs under the uid alone, without capability, with its name while the sandbox lives', async () => {
    const spec = nextSpec();
    const id = await create(spec);
    const { stdout, result } = await driver.run(spec, id, 'a', sh('id; cat /proc/self/status; pwd; umask'));
    const text = stdout.toString();
    const name = `xce-main-${spec.lease}`;
    expect(result).toEqual({ result: 'success', code: 'exited', status: 0, stopped: false });
    expect(text).toContain(`uid=${spec.uid}(${name}) gid=${spec.uid}(${name}) groups=${spec.uid}(${name})\n`);
    for (const set of ['CapInh', 'CapPrm', 'CapEff', 'CapBnd', 'CapAmb']) {
      expect(text).toContain(`${set}:\t0000000000000000\n`);
    }
    expect(text).toContain('NoNewPrivs:\t1\n');
    expect(text).toMatch(new RegExp(`/shared/xce/main/${spec.job}\\.0/work\\n0077\\n$`));
    expect(await n1.must(['getent', 'passwd', String(spec.uid)])).toContain(
      `${name}:x:${spec.uid}:${spec.uid}:`,
    );
    await driver.call('destroy', spec);
    expect((await n1.exec(['getent', 'passwd', String(spec.uid)])).exitCode).toBe(2);
    expect((await n1.exec(['getent', 'group', name])).exitCode).toBe(2);
  });

  test('gets its arguments, environment and directory byte for byte', async () => {
    const spec = nextSpec();
    const id = await create(spec);
    const odd = [
      '$$',
      '${HOME}',
      '%n',
      '100%',
      '%%',
      '"',
      "it's",
      '\\n',
      '',
      ' a  b ',
      '\n',
      '\u{1F600}',
      '*',
    ];
    const argv = [...odd.map((text) => Buffer.from(text)), Buffer.from([0xff, 0xfe, 0x01, 0x7f, 0x80])];
    const shown = await driver.run(spec, id, 'argv', ['/usr/bin/printf', '<%s>', ...argv]);
    expect(shown.stdout).toEqual(
      Buffer.concat(argv.map((one) => Buffer.concat([Buffer.from('<'), one, Buffer.from('>')]))),
    );
    const value = Buffer.concat([
      Buffer.from('A='),
      Buffer.from([0xff, 0x0a, 0x24, 0x24]),
      Buffer.from('$HOME %n '),
    ]);
    const env = await driver.run(spec, id, 'env', ['/usr/bin/env', '-0'], {
      environment: [value, 'LD_PRELOAD=', 'B=='],
    });
    const variables = env.stdout.toString('latin1').split('\0').slice(0, -1);
    expect(variables.slice(-3)).toEqual([value.toString('latin1'), 'LD_PRELOAD=', 'B==']);
    expect(variables.map((one) => one.split('=')[0]).slice(0, -3)).toEqual(
      'HOME TMPDIR USER LOGNAME SHELL XCE_JOB XCE_ATTEMPT XCE_LEASE XCE_NODE XCE_NODES XCE_UID PATH LANG'.split(
        ' ',
      ),
    );
    const directory = Buffer.concat([Buffer.from(`/tmp/ d$\n`), Buffer.from([0xff])]);
    await driver.run(spec, id, 'mkdir', ['mkdir', directory]);
    const cwd = await driver.run(spec, id, 'pwd', ['/bin/pwd'], { directory });
    expect(cwd.stdout).toEqual(Buffer.concat([directory, Buffer.from('\n')]));
    const nowhere = await driver.run(spec, id, 'nodir', ['true'], { directory: '/tmp/absent' });
    expect(nowhere.result.status).toBe(125);
    expect(nowhere.stderr.toString()).toMatch(
      /\/tmp\/absent: No such file or directory\nxce-sandbox: the step has no such working directory\n$/,
    );
  });

  test('shows other users nothing of its arguments in the unit', async () => {
    const spec = nextSpec();
    const id = await create(spec);
    const { unit } = await driver.start(spec, id, 'a', ['sleep', '600', 'SECRETARG'], {
      environment: ['X=SECRETENV'],
    });
    expect(await n1.must(['systemctl', 'show', unit])).not.toMatch(/SECRET/);
    await driver.call('stop', 'a');
    await driver.end('a');
  });

  test('has pipes that it can open by name, and passes bytes both ways', async () => {
    const spec = nextSpec();
    const id = await create(spec);
    const byName = await driver.run(
      spec,
      id,
      'a',
      sh('echo out >/dev/stdout; echo err >/dev/stderr; cat /dev/stdin'),
      {
        input: 'in\n',
      },
    );
    expect([byName.stdout.toString(), byName.stderr.toString()]).toEqual(['out\nin\n', 'err\n']);
    const bytes = Buffer.alloc(3 << 20, 'binary\0\xff\n', 'latin1');
    const copied = await driver.run(spec, id, 'b', ['cat'], { input: bytes });
    expect(copied.stdout.equals(bytes)).toBe(true);
    // A pipe of which the reader is gone ends the writer, as in any shell.
    expect(
      (
        await driver.run(spec, id, 'c', ['bash', '-c', 'yes | head -1; echo ${PIPESTATUS[0]}'])
      ).stdout.toString(),
    ).toBe('y\n141\n');
  });

  test('ends with what the kernel says of its main process', async () => {
    const spec = nextSpec();
    const id = await create(spec);
    const ends = {
      zero: ['true'],
      last: sh('exit 255'),
      odd: sh('exit 42'),
      segv: sh('kill -SEGV $$'),
      term: sh('kill -TERM $$'),
      pipe: sh('kill -PIPE $$'),
      rt: ['bash', '-c', 'kill -37 $$'],
      missing: ['no-such-command'],
      denied: ['/etc/passwd'],
    };
    const seen: Record<string, string> = {};
    for (const [name, argv] of Object.entries(ends)) {
      const { result } = await driver.run(spec, id, name, argv);
      seen[name] = `${result.code} ${result.status}${result.stopped ? ' stopped' : ''}`;
    }
    expect(seen).toEqual({
      zero: 'exited 0',
      last: 'exited 255',
      odd: 'exited 42',
      segv: 'killed 11',
      term: 'killed 15',
      pipe: 'killed 13',
      rt: 'killed 37',
      missing: 'exited 127',
      denied: 'exited 126',
    });
  });

  test('is stopped, not successful, when it was asked to end and said 0', async () => {
    const spec = nextSpec();
    const id = await create(spec);
    const { unit } = await driver.start(
      spec,
      id,
      'ours',
      sh('trap "exit 0" TERM; echo up; sleep 600 & wait'),
    );
    await sleeping(spec.uid);
    await driver.call('stop', 'ours');
    expect((await driver.end('ours')).result).toEqual({
      result: 'success',
      code: 'exited',
      status: 0,
      stopped: true,
    });
    await driver.start(spec, id, 'theirs', sh('trap "exit 0" TERM; sleep 600 & wait'));
    await sleeping(spec.uid);
    await n1.must(['systemctl', 'stop', unit.replace('ours', 'theirs')]);
    expect((await driver.end('theirs')).result).toMatchObject({ status: 0, stopped: true });
    await driver.start(spec, id, 'deaf', sh('trap "" TERM; while :; do sleep 1; done'));
    await sleeping(spec.uid);
    await driver.call('stop', 'deaf');
    expect((await driver.end('deaf')).result).toMatchObject({ code: 'killed', status: 9, stopped: true });
  });

  test('gets signals at its main process', async () => {
    const spec = nextSpec();
    const id = await create(spec);
    await driver.start(
      spec,
      id,
      'a',
      sh('trap "echo got; exit 3" USR1; echo up; while :; do sleep 0.1; done'),
    );
    await sleeping(spec.uid);
    await driver.call('signal', 'a', 10);
    const end = await driver.end('a');
    expect([end.result.status, end.stdout.toString()]).toEqual([3, 'up\ngot\n']);
  });

  test('takes along what it has started in the background', async () => {
    const spec = nextSpec();
    const id = await create(spec);
    const end = await driver.run(
      spec,
      id,
      'a',
      sh('setsid sleep 600 & (setsid sh -c "trap \\"\\" TERM HUP; sleep 600" &) ; exit 0'),
    );
    expect(end.result).toMatchObject({ code: 'exited', status: 0, stopped: false });
    expect((await n1.exec(['pgrep', '-u', String(spec.uid)])).stdout.toString()).toBe('');
  });
});

describe('what a step can reach', () => {
  test('is neither the system bus nor any other socket or file below /run', async () => {
    const spec = nextSpec();
    const id = await create(spec);
    const seen = await driver.run(
      spec,
      id,
      'a',
      sh(`find /run -mindepth 1 -maxdepth 2 2>/dev/null | sort
          busctl --system list >/dev/null 2>&1; echo bus $?
          systemctl stop ${baseOf(spec)}.anchor.service >/dev/null 2>&1; echo systemctl $?
          ls -A /run/xce/result 2>/dev/null; echo results $?
          touch /run/x 2>/dev/null || echo run is read-only`),
    );
    expect(seen.stdout.toString().trim().split('\n')).toEqual([
      // Made by systemd; empty.
      '/run/systemd',
      '/run/systemd/incoming',
      '/run/userdb',
      `/run/userdb/${spec.uid}.group`,
      `/run/userdb/${spec.uid}.user`,
      `/run/userdb/xce-main-${spec.lease}.group`,
      `/run/userdb/xce-main-${spec.lease}.user`,
      '/run/xce',
      'bus 1',
      'systemctl 1',
      'results 2',
      'run is read-only',
    ]);
  });

  test('holds no place to write but its own', async () => {
    const spec = nextSpec();
    const id = await create(spec);
    mkdirSync(join(cluster.sharedPath, 'open'), { mode: 0o777 });
    await n1.must(['chmod', '1777', '/shared/open']);
    const seen = await driver.run(
      spec,
      id,
      'a',
      // A directory that access(2) calls writable, on any file system, and files of the host's /tmp.
      sh(`find / "$HOME" "$PWD" -ignore_readdir_race -path /proc -prune -o -type d -writable -print 2>/dev/null | grep -v '^/proc' | sort
          for d in /tmp /var/tmp /dev/shm "$HOME" .; do : >$d/mine && echo wrote $d; done; ls /tmp /dev/shm`),
    );
    expect(seen.stdout.toString().trim().split('\n')).toEqual([
      '/dev/mqueue',
      '/dev/shm',
      '/run/xce/home',
      `/shared/xce/main/${spec.job}.0/work`,
      '/tmp',
      '/var/tmp',
      'wrote /tmp',
      'wrote /var/tmp',
      'wrote /dev/shm',
      'wrote /run/xce/home',
      'wrote .',
      '/dev/shm:',
      'mine',
      '',
      '/tmp:',
      'mine',
    ]);
  });

  test('includes the writable paths it was given, whoever owns them', async () => {
    mkdirSync(join(cluster.sharedPath, 'project'), { recursive: true });
    const spec = nextSpec({ writablePaths: ['/shared/project'] });
    chownSync(join(cluster.sharedPath, 'project'), spec.uid, spec.uid);
    const id = await create(spec);
    expect((await driver.run(spec, id, 'a', sh(': >/shared/project/new'))).result.status).toBe(0);
    expect(statSync(join(cluster.sharedPath, 'project/new')).uid).toBe(spec.uid);
    rmSync(join(cluster.sharedPath, 'project'), { recursive: true });
  });

  test('gives no privilege back and no way into another namespace', async () => {
    const spec = nextSpec();
    const id = await create(spec);
    const seen = await driver.run(
      spec,
      id,
      'a',
      sh(`for c in 'unshare -U true' 'unshare -m true' 'mount -t tmpfs x /tmp' 'chmod u+s mine' 'mknod node c 1 3' \
                   'keyctl_probe' 'chroot / true' 'su -c true' 'nsenter -t 1 -m true' 'hostname other' 'renice -n -5 $$'; do
            : >mine; $c >/dev/null 2>&1 && echo "allowed: $c"; done
          ulimit -c; bash -c 'ulimit -u'; cat /proc/1/comm 2>/dev/null || echo no other process`),
    );
    expect(seen.stdout.toString()).toBe(`0\n${SETTINGS.sandbox.tasksMax}\nno other process\n`);
  });

  test('excludes io_uring and the kernel keyrings', async () => {
    const spec = nextSpec();
    const id = await create(spec);
    const source = `#include <stdio.h>
#include <errno.h>
#include <sys/syscall.h>
#include <unistd.h>
int main(void) {
  long numbers[] = { SYS_io_uring_setup, SYS_keyctl, SYS_add_key, SYS_request_key, SYS_bpf, SYS_ptrace };
  for (unsigned i = 0; i < sizeof numbers / sizeof *numbers; i++) {
    errno = 0;
    long r = syscall(numbers[i], 0, 0, 0, 0, 0);
    printf("%ld %d\\n", r, errno == EPERM);
  }
  return 0;
}`;
    const seen = await driver.run(spec, id, 'a', sh('cat >p.c && gcc -o p p.c && ./p'), { input: source });
    expect(seen.stdout.toString()).toBe('-1 1\n'.repeat(6));
  });

  test('is shared by the steps of a sandbox and by nobody else', async () => {
    const [mine, other] = [nextSpec(), nextSpec()];
    const [id, otherId] = [await create(mine), await create(other)];
    await driver.run(
      mine,
      id,
      'a',
      sh(
        'echo x >/tmp/x; echo x >/dev/shm/x; ipcmk -M 4096 -p 0666; ipcmk -Q; : >/dev/mqueue/x; chmod 777 /tmp /dev/shm',
      ),
    );
    const look = 'ls /tmp /dev/shm /dev/mqueue; ipcs -mq | grep -c 0x';
    expect((await driver.run(mine, id, 'b', sh(look))).stdout.toString()).toBe(
      '/dev/mqueue:\nx\n\n/dev/shm:\nx\n\n/tmp:\nx\n2\n',
    );
    const nothing = '/dev/mqueue:\n\n/dev/shm:\n\n/tmp:\n0\n';
    expect((await driver.run(other, otherId, 'a', sh(look))).stdout.toString()).toBe(nothing);
    expect((await n1.exec(['ls', '/dev/mqueue'])).stdout.toString()).toBe('');
    expect((await n1.exec(sh('ls /tmp/x /dev/shm/x'))).exitCode).toBe(2);
  });

  test('is bounded in memory files, names and processes', async () => {
    const spec = nextSpec();
    const id = await create(spec);
    const seen = await driver.run(
      spec,
      id,
      'a',
      sh(`head -c 64M /dev/zero >/tmp/big 2>/dev/null; stat -c %s /tmp/big; rm /tmp/big
          head -c 64M /dev/zero >/dev/shm/big 2>/dev/null; stat -c %s /dev/shm/big; rm /dev/shm/big
          i=0; while (: >/var/tmp/$i) 2>/dev/null; do i=$((i + 1)); [ $i -lt 5000 ] || break; done; echo $i names
          rm -r /var/tmp/*; cat >p.c && gcc -o p p.c && ./p`),
      {
        input: `#include <stdio.h>
#include <errno.h>
#include <signal.h>
#include <unistd.h>
int main(void) {
  int count = 0, pid = 0;
  signal(SIGCHLD, SIG_IGN);
  while (count < 1000 && (pid = fork()) > 0) count++;
  if (pid == 0) { pause(); _exit(0); }
  printf("%d processes, again %d\\n", count, errno == EAGAIN);
  return 0;
}`,
      },
    );
    const lines = seen.stdout.toString().trim().split('\n');
    expect(lines.slice(0, 2)).toEqual([String(32 << 20), String(32 << 20)]);
    expect(Number.parseInt(lines[2] ?? '', 10)).toBeLessThanOrEqual(SETTINGS.sandbox.tmpInodes);
    expect(lines[3]).toMatch(/^2[0-9]{2} processes, again 1$/);
  });

  test('takes as many steps at once as its processes, which is more than a bus takes calls or rules', async () => {
    const spec = nextSpec();
    const id = await create(spec);
    const steps = Array.from({ length: 200 }, (_, index) => `s${index}`);
    const ends = await Promise.all(
      steps.map((step) => driver.run(spec, id, step, ['/bin/sleep', '20']).catch((error: unknown) => error)),
    );
    const failed = ends.filter((end) => end instanceof Error);
    expect(failed.map((error) => error.message)).toEqual([]);
  }, 300_000);

  test('runs MPI ranks that share memory', async () => {
    const spec = nextSpec();
    const id = await create(spec);
    const source = `#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
int main(int c, char **v) {
  int rank, size, sum; MPI_Comm node; int local;
  MPI_Init(&c, &v); MPI_Comm_rank(MPI_COMM_WORLD, &rank); MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node); MPI_Comm_size(node, &local);
  if (rank == 0) { printf("size %d sum %d shared %d\\n", size, sum, local); fflush(stdout); system("stat -c '%a %u' /tmp; stat -c %u /tmp/prte*"); }
  MPI_Finalize(); return 0;
}`;
    const seen = await driver.run(
      spec,
      id,
      'a',
      sh('cat >p.c && mpicc -o p p.c && mpirun -n 3 --oversubscribe ./p && ls /tmp /dev/shm'),
      { input: source },
    );
    // PRRTE's session directory is the job's own, in a directory that is private, and nothing of it stays.
    expect(seen.stdout.toString()).toBe(
      `size 3 sum 3 shared 3\n700 ${spec.uid}\n${spec.uid}\n/dev/shm:\n\n/tmp:\n`,
    );
  });
});

describe('what a job may use of its node', () => {
  /** A sandbox of a worker with other settings. */
  const withSettings = async (
    more: Partial<typeof SETTINGS.sandbox>,
    work: (own: Driver) => Promise<void>,
    environments = SETTINGS.environments,
  ): Promise<void> => {
    const sandbox = { ...SETTINGS.sandbox, ...more };
    const own = await Driver.start(n1, { ...SETTINGS, sandbox, environments });
    try {
      await work(own);
    } finally {
      await own.close();
    }
  };

  test('are the configured devices that the node has, or those that were asked for', async () => {
    await n1.must(sh('mknod -m 666 /dev/xce0 c 10 229; mknod -m 666 /dev/xce1 c 10 229'));
    await n1.must(sh('mknod -m 666 /dev/other c 10 229'));
    await withSettings({ devices: ['/dev/xce*', '/dev/absent'] }, async (own) => {
      // ENODEV or ENOENT are words of a driver; EPERM is the control group's.
      const look = 'for d in xce0 xce1 other; do [ -e /dev/$d ] && (: </dev/$d) && echo $d; done; true';
      for (const [asked, seen] of [
        [{}, 'xce0\nxce1\n'],
        [{ devices: ['/dev/xce1'] }, 'xce1\n'],
        [{ devices: [] }, ''],
      ] as const) {
        const spec = nextSpec();
        lab.open.push(spec);
        const { invocationId } = await own.call('create', spec, HOUR_MS, { ...asked } as object);
        expect((await own.run(spec, invocationId, 'a', sh(look))).stdout.toString()).toBe(seen);
      }
      const greedy = nextSpec();
      expect(await codeOf(own.call('create', greedy, HOUR_MS, { devices: ['/dev/other'] }))).toBe(
        'resource-refused',
      );
    });
  });

  test('are the stack, locked memory and environment of the configuration', async () => {
    const variables = [
      { name: 'PATH', value: '/opt/mpi/bin:/usr/bin:/bin' },
      { name: 'LD_LIBRARY_PATH', value: '/opt/mpi/lib' },
    ];
    const environments = [{ name: 'mpi', variables }];
    const more = { memlock: String(4 << 20), stackBytes: 16 << 20, path: '/usr/bin:/opt/site' };
    await withSettings(
      more,
      async (own) => {
        const show = sh(
          'ulimit -l; ulimit -S -s; ulimit -H -s; ulimit -c; echo $PATH; echo $LD_LIBRARY_PATH',
        );
        for (const [asked, path, library] of [
          [{}, '/usr/bin:/opt/site', ''],
          [{ profile: 'mpi' }, '/opt/mpi/bin:/usr/bin:/bin', '/opt/mpi/lib'],
        ] as const) {
          const spec = nextSpec();
          lab.open.push(spec);
          const { invocationId } = await own.call('create', spec, HOUR_MS, asked);
          const end = await own.run(spec, invocationId, 'a', ['/bin/bash', ...show.slice(1)]);
          expect(end.stdout.toString()).toBe(`4096\n16384\nunlimited\n0\n${path}\n${library}\n`);
        }
        expect(await codeOf(own.call('create', nextSpec(), HOUR_MS, { profile: 'gcc' }))).toBe(
          'resource-refused',
        );
      },
      environments,
    );
  });

  test('is no limit that the kernel of the node cannot hold', async () => {
    const spec = nextSpec();
    expect(await codeOf(driver.call('create', spec, HOUR_MS, { memoryBytes: 1 << 30 }))).toBe(
      'resource-unsupported',
    );
    expect(await driver.call('scan', spec)).toEqual([]);
  });

  /** Sends a datagram from inside; EPERM is what the filter of the control group answers. */
  const reach = (address: string): string[] => [
    '/bin/bash',
    '-c',
    `echo >/dev/udp/${address}/9 && echo sent`,
  ];

  test('is the network of its nodes alone', async () => {
    const spec = nextSpec();
    const id = await create(spec);
    for (const near of ['127.0.0.1', n1.address, lab.n2.address]) {
      expect((await driver.run(spec, id, 'near', reach(near))).stdout.toString()).toBe('sent\n');
    }
    const far = await driver.run(spec, id, 'far', reach('10.77.0.200'));
    expect(far.stderr.toString()).toMatch(/Operation not permitted/);
    const alone = nextSpec({ nodes: ['n1'] as NodeName[] });
    const aloneId = await create(alone);
    const other = await driver.run(alone, aloneId, 'far', reach(lab.n2.address));
    expect(other.stderr.toString()).toMatch(/Operation not permitted/);
    const unknown = nextSpec({ nodes: ['n1', 'n99'] as NodeName[] });
    expect(await codeOf(driver.call('create', unknown, HOUR_MS))).toBe('sandbox-refused');
  });

  test('is what the site opens beside', async () => {
    await withSettings({ networkAllow: [{ address: '10.77.0.192', prefix: 27 }] }, async (own) => {
      const spec = nextSpec();
      lab.open.push(spec);
      const { invocationId } = await own.call('create', spec, HOUR_MS);
      expect((await own.run(spec, invocationId, 'a', reach('10.77.0.200'))).stdout.toString()).toBe('sent\n');
      const far = await own.run(spec, invocationId, 'b', reach('10.77.0.230'));
      expect(far.stderr.toString()).toMatch(/Operation not permitted/);
    });
    await withSettings({ network: 'open' }, async (own) => {
      const spec = nextSpec();
      lab.open.push(spec);
      const { invocationId } = await own.call('create', spec, HOUR_MS);
      expect((await own.run(spec, invocationId, 'a', reach('10.77.0.230'))).stdout.toString()).toBe('sent\n');
    });
  });
});
