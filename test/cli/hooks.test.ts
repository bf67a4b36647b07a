import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { CliHost, LOG_DIRECTORY } from './host.ts';
import { check, expectRefusal, leavesAsIs } from './transcript.ts';

let host: CliHost;
beforeAll(async () => {
  host = await CliHost.start();
  // Nobody listens at these addresses.
  host.write('/etc/hosts', '127.0.0.1 localhost n1 n2 n3\n');
  await host.must(['lease', 'init']);
  await host.must(['pki', 'init']);
  await host.must(['pki', 'issue', '--role', 'controller', '--node', 'ctl', '--out', '/etc/xce-sandbox/pki']);
});
afterAll(() => host.end());

const SLURM = {
  SLURM_JOB_ID: '100',
  SLURM_JOB_RESTART_COUNT: '0',
  SLURM_JOB_UID: '1001',
  SLURM_JOB_GID: '1001',
  SLURM_JOB_NODELIST: 'n[1-3]',
} as const;

/** Runs a command that must change nothing in the log. */
const changesNothing = (command: () => Promise<unknown>): Promise<void> =>
  leavesAsIs(host, LOG_DIRECTORY, command);

describe('an epilog without a prolog', () => {
  test('is no error, and changes nothing', async () => {
    await changesNothing(async () => {
      for (const attempt of ['0', '7']) {
        await check(host, {
          args: 'epilog',
          env: { ...SLURM, SLURM_JOB_RESTART_COUNT: attempt },
          stdout: `job:     100 (attempt ${attempt})\noutcome: it never had a lease\n`,
          stderr: `xce-sandbox: nothing to release: attempt ${attempt} of job 100 has no lease\n`,
        });
      }
    });
  });
});

describe('a prolog', () => {
  test('whose nodes give no answer leases, and fails', async () => {
    await expectRefusal(host, {
      args: 'prolog',
      env: SLURM,
      code: 'hook-nodes',
      status: 69,
      says: /lease 1: .*n\[1-3\].*uid 70000 stays leased until the epilog/s,
      inTurn: true,
    });
    const listed = JSON.parse(await host.must(['lease', 'list', '--json'])) as readonly unknown[];
    expect(listed).toMatchObject([{ job: '100', attempt: 0, uid: 70_000, status: 'active' }]);
  });

  test.each([
    '100_7',
    '107',
    '100+1',
    '1234[7].pbs01.example',
    '1234[8].pbs01.example',
    '1234[].pbs01.example',
  ])('takes job id %s for a job of its own, byte for byte', async (job) => {
    const env = { ...SLURM, SLURM_JOB_ID: job };
    expect((await host.xce(['prolog'], { env })).status).toBe(69);
    const listed = JSON.parse(await host.must(['lease', 'list', '--json'])) as readonly { job: string }[];
    expect(listed.filter((lease) => lease.job === job)).toHaveLength(1);
  });

  test.each([
    ['no batch system has said its job', {}, /whose hook is this/],
    ['two could be meant', { ...SLURM, PBS_JOBID: '1.pbs' }, /slurm or pbs.*--scheduler/s],
    [
      'the submitter is not known',
      { SLURM_JOB_ID: '1', SLURM_JOB_NODELIST: 'n1' },
      /SLURM_JOB_UID.*--submitter/s,
    ],
    ['the nodes are not known', { SLURM_JOB_ID: '1', SLURM_JOB_UID: '1001' }, /SLURM_JOB_NODELIST.*--nodes/s],
    ['the attempt is no number', { ...SLURM, SLURM_JOB_RESTART_COUNT: 'x' }, /SLURM_JOB_RESTART_COUNT: 'x'/],
  ])('is refused where %s', async (_, env, says) => {
    await changesNothing(() =>
      expectRefusal(host, { args: 'prolog', env, code: 'hook-facts', status: 66, says }),
    );
  });

  test.each(['0', '999'])('is refused for submitter %s', async (uid) => {
    await changesNothing(() =>
      expectRefusal(host, {
        args: 'prolog --job 5',
        env: { ...SLURM, SLURM_JOB_UID: uid },
        code: 'submitter',
        status: 64,
      }),
    );
  });
});

describe('the scripts for Slurm', () => {
  /** What a user who may set the environment of root's hooks would set. */
  const HOSTILE =
    'NODE_OPTIONS=--require=/tmp/e.js NODE_PATH=/tmp BASH_ENV=/tmp/e ENV=/tmp/e HOME=/tmp XDG_CONFIG_HOME=/tmp XCE_SANDBOX_CONFIG=/tmp/evil.ini DEBUG=* OCLIF_TS_NODE=1 IFS=/ PATH=/tmp';

  test('start the command with what Slurm says of the job and nothing else', async () => {
    // In place of node: what it would have been given.
    host.write('/srv/bin/xce-sandbox', '#!/bin/sh\nenv > "/srv/env.$1"\necho "$@" > "/srv/args.$1"\n', 0o755);
    for (const hook of ['prolog', 'epilog']) {
      const script = host.read(`/mnt/product/share/hooks/slurm-${hook}`);
      host.write('/srv/hook', script.replace('PATH=', 'PATH=/srv/bin:'), 0o755);
      const all = Object.entries({ ...SLURM, SLURM_JOB_START_TIME: '5', SLURM_JOB_END_TIME: '9' });
      const words = all.map(([name, value]) => `${name}='${value}'`).join(' ');
      await host.shell(`${words} ${HOSTILE} /srv/hook`);
      expect(host.read(`/srv/args.${hook}`)).toBe(`${hook} --scheduler slurm\n`);
      const names = host
        .read(`/srv/env.${hook}`)
        .split('\n')
        .flatMap((line) => /^([^=]+)=/.exec(line)?.[1] ?? [])
        .filter((name) => name !== 'PWD');
      const wanted =
        hook === 'prolog'
          ? all.map(([name]) => name)
          : ['SLURM_JOB_ID', 'SLURM_JOB_RESTART_COUNT', 'SLURM_JOB_START_TIME'];
      expect(names.sort()).toEqual(['PATH', ...wanted].sort());
    }
  });
});
