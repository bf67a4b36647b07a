/**
 * Whatever dies while the ranks of an MPI program run on three nodes, or while they start: the launch ends everywhere,
 * with the job's own status or with 125 and the node and cause by name, and leaves nothing. Prints what it measured.
 */
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import type { Node } from '../support/cluster/node.ts';
import {
  expectNothing,
  killWorkerForGood,
  processesOf,
  type Running,
  reviveWorker,
  spawnLaunch,
} from '../support/launches.ts';
import { type Allocated, CONFIG_PATH, Site } from '../support/site.ts';

const COMPILERS = { prrte: 'mpicc.openmpi', hydra: 'mpicc.mpich' } as const;
const DAEMONS = { prrte: 'prted', hydra: 'hydra_pmi_proxy' } as const;
const HEADS = { prrte: 'prterun', hydra: 'mpiexec.hydra' } as const;
type Launcher = keyof typeof COMPILERS;

/** From the event to the end of the launch, everywhere; far beyond what the table shows, for a busy machine. */
const END_MS_MAX = 60_000;
/** Of `[mpi] agent_timeout` here: how long a launcher may wait for a daemon that does not start. */
const AGENT_TIMEOUT_S = 5;

let site: Site;
let job = '';
let lease: Allocated;
let jobs = 0;
const table: string[] = [];

const n = (index: number): Node => site.cluster.node(`n${index}`);
const program = (launcher: Launcher): string => `/shared/bin/mpi-end-${launcher}`;

beforeAll(async () => {
  site = await Site.start({ layers: ['mpich'] });
  for (const [launcher, compiler] of Object.entries(COMPILERS))
    await site.compile('mpi-end', compiler, `mpi-end-${launcher}`);
  for (const node of [site.controller, ...site.workers]) {
    const config = (await node.readFile(CONFIG_PATH)).toString('utf8');
    await node.writeFile(CONFIG_PATH, `${config}agent_timeout = ${AGENT_TIMEOUT_S}s\n`);
  }
  for (const node of site.workers) await node.must(['systemctl', 'restart', 'xce-sandbox-worker.service']);
});

afterAll(async () => {
  process.stdout.write(`${table.join('\n')}\n`);
  await site?.down();
});

beforeEach(async () => {
  jobs += 1;
  job = `${jobs}`;
  lease = await site.allocate(job);
});

/** Needs every node to certify that nothing of the lease is left: no process, unit, IPC object or file. */
afterEach(async () => {
  await site.must('lease', 'release', '--job', job);
  await expectNothing(site.workers, lease);
  for (const node of site.workers) {
    const left = ['find', '/tmp', '/var/tmp', '/dev/shm', '/run', '-uid', String(lease.uid)];
    expect([node.name, await node.must(left)]).toEqual([node.name, '']);
  }
});

type End = { readonly status: number | null; readonly errors: string };

const note = (launcher: Launcher, event: string, beganMs: number, { status, errors }: End): void => {
  const seconds = ((performance.now() - beganMs) / 1000).toFixed(1);
  const said = /xce-sandbox: (.*)$/m.exec(errors)?.[1] ?? '';
  table.push(
    [launcher.padEnd(6), event.padEnd(44), String(status).padStart(4), seconds.padStart(6), said].join('  '),
  );
};

/** A program that waits for ever, with a rank on each node. */
const launchWaiting = async (launcher: Launcher, ...more: readonly string[]): Promise<Running> => {
  const running = await spawnLaunch(site, [
    ...['--job', job, `--mpi=${launcher}`, '-n', '3', ...more, '--', 'sh', '-c'],
    `echo up $(hostname); exec ${program(launcher)} wait`,
  ]);
  for (const node of site.workers) await running.shows(`up ${node.name}`);
  return running;
};

const endOf = async (launcher: Launcher, event: string, running: Running, beganMs: number): Promise<End> => {
  const { exitCode } = await running.child.ended;
  const end = { status: exitCode, errors: running.errors.text };
  note(launcher, event, beganMs, end);
  expect(performance.now() - beganMs).toBeLessThan(END_MS_MAX);
  for (const node of site.workers) {
    if (node.running) expect([node.name, await processesOf(node, lease.uid)]).toEqual([node.name, '']);
  }
  return end;
};

/** What the launch comes to after that event. */
const endAfter = async (launcher: Launcher, event: string, act: () => Promise<unknown>): Promise<End> => {
  const running = await launchWaiting(launcher);
  const beganMs = performance.now();
  await act();
  return await endOf(launcher, event, running, beganMs);
};

const failure = (reason: RegExp) => ({ status: 125, errors: expect.stringMatching(reason) });

describe.each(['prrte', 'hydra'] as const)('with %s', (launcher) => {
  const kill = (node: Node, pattern: string): Promise<string> =>
    node.must(['pkill', '-KILL', '-u', String(lease.uid), '-f', pattern]);
  const daemon = `^(/usr/bin/)?${DAEMONS[launcher]} `;
  const stopUnits = (node: Node, what: string): Promise<string> =>
    node.must(['sh', '-c', `systemctl stop 'xce-main-${lease.lease}.'*'.${what}'`]);

  /** A program whose last rank ends so; two on each node. */
  const run = async (how: string): Promise<End> => {
    const beganMs = performance.now();
    const argv = [
      ...['--job', job, `--mpi=${launcher}`, '-n', '6', '--timeout', '45s'],
      '--',
      program(launcher),
      how,
    ];
    return await endOf(launcher, `a rank: ${how}`, await spawnLaunch(site, argv), beganMs);
  };

  test('a rank that aborts gives the job its status, and one that dies fails it', async () => {
    // prterun hangs now and then after an abort, and is ended by the launch then.
    const ends = launcher === 'prrte' ? [5, 125] : [5];
    expect(ends).toContain((await run('abort')).status);
    // mpiexec misses now and then that a rank died, when its daemon has ended with 0: that is a job of which the other
    // ranks go on, and --timeout is what ends it.
    // Which of a signal, 128 and the signal, or 255 it is, is the launcher's affair, and mpiexec gives one or the other.
    for (const how of ['kill', 'segv']) expect((await run(how)).status, how).not.toBe(0);
  });

  test('a daemon that is killed ends the job', async () => {
    const end = await endAfter(launcher, 'daemon on n2: SIGKILL', () => kill(n(2), daemon));
    // mpirun says 0; mpiexec fails, and does not say which.
    if (launcher === 'prrte') expect(end).toEqual(failure(/MPI daemon on n2 ended by signal 9/));
    else
      expect(end).toEqual({
        status: 255,
        errors: expect.stringMatching(/MPI daemon on n2 ended by signal 9/),
      });
  });

  test('a unit that is stopped on another node ends the job', async () => {
    const end = await endAfter(launcher, 'unit of the daemon on n3 stopped', () => stopUnits(n(3), 'step.*'));
    expect(end.status).not.toBe(0);
    expect(end.errors).toMatch(/n3/);
  });

  test('a sandbox that is stopped on another node ends the job', async () => {
    const end = await endAfter(launcher, 'sandbox on n2 stopped', () => stopUnits(n(2), 'anchor.service'));
    expect(end.status).not.toBe(0);
    expect(end.errors).toMatch(/n2/);
  });

  test('a head that is killed, or whose unit is stopped, ends the job', async () => {
    const head = `^(/usr/bin/)?${HEADS[launcher]} `;
    expect(await endAfter(launcher, 'launcher on n1: SIGKILL', () => kill(n(1), head))).toMatchObject({
      status: 137,
    });
    const stopped = await endAfter(launcher, 'unit of the launcher stopped', () => stopUnits(n(1), 'step.*'));
    expect(stopped).toEqual(failure(/head on n1 was stopped from outside/));
  });

  test('a worker that is killed on another node ends the job', async () => {
    const end = await endAfter(launcher, 'worker of n2: SIGKILL', () => killWorkerForGood(n(2)));
    expect(end.status).not.toBe(0);
    expect(end.errors).toMatch(/n2/);
    await reviveWorker(n(2));
  });

  test('a worker that is killed on the first node ends the job', async () => {
    const end = await endAfter(launcher, 'worker of n1: SIGKILL', () => killWorkerForGood(n(1)));
    expect(end).toEqual(failure(/n1/));
    await reviveWorker(n(1));
  });

  test('a node that is cut off ends the job on the others at once, and there by itself', async () => {
    const running = await launchWaiting(launcher);
    const beganMs = performance.now();
    await n(3).linkDown();
    const { exitCode } = await running.child.ended;
    const end = { status: exitCode, errors: running.errors.text };
    note(launcher, 'n3 cut off', beganMs, end);
    for (const node of [n(1), n(2)])
      expect([node.name, await processesOf(node, lease.uid)]).toEqual([node.name, '']);
    await n(3).must(
      ['timeout', '90', 'sh', '-c', `while pgrep -u ${lease.uid} >/dev/null; do sleep 0.2; done`],
      {
        timeoutMs: 100_000,
      },
    );
    note(launcher, '  and until nothing runs on n3', beganMs, { status: null, errors: '' });
    await n(3).linkUp();
    expect(end.status).not.toBe(0);
    expect(end.errors).toMatch(/n3/);
  });

  test('an agent that fails makes the launcher fail, and says what was missing', async () => {
    await site.must('launch', '--job', job, '--', 'true');
    const script = { prrte: 'mpirun --host n1,n2 -n 2', hydra: 'mpiexec.hydra -hosts n1,n2 -n 2' }[launcher];
    const launch = ['--job', job, '--nodes', 'n1', '--', 'sh', '-c', `${script} ${program(launcher)}`];
    const hung = await n(2).must(['systemctl', 'show', '-P', 'MainPID', 'xce-sandbox-worker.service']);
    await n(2).must(['kill', '-STOP', hung.trim()]);
    let beganMs = performance.now();
    const stopped = await endOf(
      launcher,
      'worker of n2 hangs at the start',
      await spawnLaunch(site, launch),
      beganMs,
    );
    await n(2).must(['kill', '-CONT', hung.trim()]);
    expect(stopped.status).not.toBe(0);
    expect(stopped.errors).toMatch(/^xce-sandbox-agent: .*n2/m);

    await killWorkerForGood(n(2));
    beganMs = performance.now();
    const dead = await endOf(
      launcher,
      'worker of n2 is dead at the start',
      await spawnLaunch(site, launch),
      beganMs,
    );
    await reviveWorker(n(2));
    expect(dead.status).not.toBe(0);
    expect(dead.errors).toMatch(/^xce-sandbox-agent: .*n2.*ECONNREFUSED/m);
  });

  test('a launcher whose agent starts nothing is ended, and the nodes are named', async () => {
    const variable = { prrte: 'PRTE_MCA_plm_ssh_agent', hydra: 'HYDRA_LAUNCHER_EXEC' }[launcher];
    // mpiexec notices one that ends; mpirun waits for it as for one that hangs.
    const agent = { prrte: 'exec true', hydra: 'exec sleep 300' }[launcher];
    const path = `/shared/bin/agent-${launcher}`;
    await site.controller.writeFile(path, `#!/bin/sh\n${agent}\n`, { mode: 0o755 });
    const argv = [
      '--job',
      job,
      `--mpi=${launcher}`,
      '-n',
      '3',
      '-e',
      `${variable}=${path}`,
      '--',
      program(launcher),
    ];
    const beganMs = performance.now();
    const end = await endOf(launcher, `agent: ${agent}`, await spawnLaunch(site, argv), beganMs);
    expect(end).toEqual(failure(/no MPI daemon started on n\[2-3\] within/));
  });
});

test('ranks of MPICH may work on alone after the end of MPI, longer than any limit of ours', async () => {
  const script = `${program('hydra')} && { [ $PMI_RANK != 0 ] || sleep 20; }`;
  const end = await site.run(['launch', '--job', job, '--mpi=hydra', '-n', '3', '--', 'sh', '-c', script]);
  expect(end).toMatchObject({ status: 0 });
});

test('MPICH needs no node whose slots it does not use', async () => {
  const argv = ['--tasks-per-node', '2', '-n', '2', '--', program('hydra')];
  expect(await site.run(['launch', '--job', job, '--mpi=hydra', ...argv])).toMatchObject({ status: 0 });
});
