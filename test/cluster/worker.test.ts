/** What one worker does and refuses, on real nodes, spoken to as no controller would. */
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { Epoch, JobId, LeaseNumber, NodeName, Uid } from '../../src/base/ids.ts';
import type { TicketClaims } from '../../src/lease/ticket.ts';
import type { RequestOf } from '../../src/rpc/message.ts';
import { AUDIT_MESSAGE_ID } from '../../src/worker/journal.ts';
import type { Node } from '../support/cluster/node.ts';
import { type Driver, type LabStream, POOL, WorkerLab } from '../support/worker-lab.ts';

const UNIT = 'xce-sandbox-worker.service';
let lab: WorkerLab;
let controller: Driver;
let n1: Node;
let lastLease = 10;

beforeAll(async () => {
  lab = await WorkerLab.start({ workers: ['n1', 'n2'] });
  controller = await lab.driver();
  n1 = lab.node('n1');
});

afterAll(async () => {
  await lab?.down();
});

/** A lease of its own for each test, with a job and a uid of its own. */
const nextLease = () => {
  lastLease += 1;
  const lease = lastLease as LeaseNumber;
  const uid = (POOL.first + lastLease) as Uid;
  const job = `j${lastLease}` as JobId;
  const drain: Partial<RequestOf<'drain'>> = { lease, uid, job };
  const claims: Partial<TicketClaims> = { lease, uid, job };
  return { lease, uid, job, claims, drain };
};

const prepared = async (changes: Partial<TicketClaims> = {}) => {
  const own = nextLease();
  const ticket = await lab.prepare(controller, 'n1', { ...own.claims, ...changes });
  const run = (argv: readonly string[], step: Partial<RequestOf<'step'>> = {}) =>
    controller.stream('n1', 'step', lab.step(ticket, argv, step));
  return { ...own, ticket, run };
};

const unitsOf = async (node: Node, lease: number): Promise<readonly string[]> => {
  const argv = ['systemctl', 'list-units', '--all', '--plain', '--no-legend', `xce-main-${lease}.*`];
  return (await node.must(argv)).split('\n').filter((line) => line !== '');
};

const processesOf = async (node: Node, uid: number): Promise<string> =>
  (await node.exec(['ps', '-o', 'args=', '-u', String(uid)])).stdout.toString();

const stateOf = async (node: string, lease: number): Promise<string | undefined> =>
  (await controller.must(node, 'status', {})).sandboxes.find((sandbox) => sandbox.lease === lease)?.state;

const mainPid = async (node: Node): Promise<string> =>
  (await node.must(['systemctl', 'show', '-p', 'MainPID', '--value', UNIT])).trim();

/** Waits, bounded, for what only polling can see: another process on another node. */
const until = async (what: string, look: () => Promise<boolean>, rounds = 100): Promise<void> => {
  for (let round = 0; round < rounds; round += 1) {
    if (await look()) return;
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
  throw new Error(`not within ${rounds / 10} s: ${what}`);
};

const journalSays = async (text: string): Promise<boolean> =>
  (await n1.must(['journalctl', '-u', UNIT, '-o', 'cat', '--no-pager'])).includes(text);

const answered = (): Promise<boolean> =>
  controller.call('n1', 'challenge', { purpose: 'hello' }).then((answer) => 'nonce' in answer);

describe('a job on one node', () => {
  test('is prepared, runs steps with their bytes and status, is drained and certified', async () => {
    const { lease, uid, drain, run } = await prepared();
    const id = run(['id', '-u']);
    expect(await id.end).toBeUndefined();
    expect(id.stdout()).toBe(`${uid}\n`);
    const cat = run(['cat'], { stdin: true });
    await cat.event('started');
    cat.write('through\n');
    cat.endStdin();
    expect(await cat.end).toBeUndefined();
    expect(cat.stdout()).toBe('through\n');
    const three = run(['sh', '-c', 'echo oops >&2; exit 3']);
    expect(await three.event('ended')).toMatchObject({
      outcome: { result: 'exit-code', code: 'exited', status: 3, stopped: false },
    });
    expect(await controller.must('n1', 'drain', lab.drainRequest(drain))).toMatchObject({
      certificate: expect.stringMatching(/^xcc1\./),
    });
    expect(await unitsOf(n1, lease)).toEqual([]);
    expect((await n1.exec(['getent', 'passwd', String(uid)])).exitCode).toBe(2);
    expect(await run(['true']).end).toMatchObject({ code: 'ticket-tombstone' });
  });

  test('gets a signal, and dies when its caller goes away', async () => {
    const { uid, run } = await prepared();
    const trap = run(['sh', '-c', 'trap "echo got; exit 7" USR1; echo up; while :; do sleep 0.1; done']);
    await until('the trap is set', async () => trap.stdout() === 'up\n');
    trap.signal(10);
    expect(await trap.event('ended')).toMatchObject({ outcome: { code: 'exited', status: 7 } });
    const sleep = run(['sleep', '1000']);
    await sleep.event('started');
    sleep.cancel();
    await until('the step ended', async () => (await processesOf(n1, uid)) === '');
  });

  test('has at the end of its tickets no process any more, and its lease is not certified before a drain', async () => {
    const { lease, uid, drain, run } = await prepared({ ttlMs: 4000 });
    const sleep = run(['sleep', '1000']);
    expect(await sleep.event('ended')).toMatchObject({ outcome: { stopped: true } });
    await until('the sandbox is lost', async () => (await stateOf('n1', lease)) === 'lost');
    expect(await processesOf(n1, uid)).toBe('');
    expect(await run(['true']).end).toMatchObject({ code: 'ticket-expired' });
    expect(await controller.must('n1', 'drain', lab.drainRequest(drain))).toHaveProperty('certificate');
  });

  test('is renewed by a newer ticket', async () => {
    const { claims, lease, run } = await prepared({ ttlMs: 5000 });
    const newer = await lab.ticket(controller, 'n1', { ...claims, ttlMs: 60_000 });
    const { remainingMs } = await controller.must('n1', 'renew', { ticket: newer });
    expect(remainingMs).toBeGreaterThan(50_000);
    const sleep = run(['sleep', '6']);
    expect(await sleep.event('ended')).toMatchObject({ outcome: { code: 'exited', status: 0 } });
    expect(await stateOf('n1', lease)).toBe('ready');
    expect(await run(['true']).end).toMatchObject({ code: 'ticket-expired' });
    const step = controller.stream('n1', 'step', lab.step(newer, ['true']));
    expect(await step.end).toBeUndefined();
  });

  test('is not certified while a process of its uid lives anywhere, and the refusal names it', async () => {
    const { uid, drain } = await prepared();
    const survivor = await n1.spawn(['setpriv', `--reuid=${uid}`, '--clear-groups', 'sleep', '4321']);
    await until('the survivor runs', async () => (await processesOf(n1, uid)).includes('sleep 4321'));
    const refused = await controller.call('n1', 'drain', lab.drainRequest(drain));
    expect(refused).toMatchObject({ code: 'node-dirty', message: expect.stringContaining('sleep 4321') });
    survivor.kill('SIGKILL');
    await survivor.ended;
    expect(await controller.must('n1', 'drain', lab.drainRequest(drain))).toHaveProperty('certificate');
  });
});

describe('a worker starts nothing', () => {
  test.each<[string, Partial<TicketClaims>]>([
    ['ticket-node', { node: 'n2' as NodeName }],
    ['ticket-cluster', { cluster: 'elsewhere' }],
    ['ticket-nonce', { nonce: '00'.repeat(16) }],
    ['ticket-expired', { ttlMs: 1 }],
    ['sandbox-refused', { uid: 69_000 as Uid }],
    ['sandbox-refused', { workspace: { storage: 'shared', path: '/etc' } }],
    ['sandbox-refused', { roots: [{ path: '/shared/../etc' }] }],
  ])('with %s for a ticket with %j', async (code, changes) => {
    const { lease, claims } = nextLease();
    const ticket = await lab.ticket(controller, 'n1', { ...claims, ...changes });
    expect(await controller.call('n1', 'prepare', { ticket })).toMatchObject({ code });
    expect(await unitsOf(n1, lease)).toEqual([]);
    expect(await stateOf('n1', lease)).toBeUndefined();
  });

  test('for an older epoch, an older lease, a drained lease, a changed byte or no ticket', async () => {
    const { claims, lease, uid, drain } = await prepared({ epoch: 5 as Epoch });
    const at = async (changes: Partial<TicketClaims>) =>
      controller.call('n1', 'prepare', {
        ticket: await lab.ticket(controller, 'n1', { ...claims, ...changes }),
      });
    expect(await at({ epoch: 4 as Epoch })).toMatchObject({ code: 'ticket-epoch' });
    await controller.must('n1', 'drain', lab.drainRequest({ ...drain, epoch: 5 }));
    expect(await at({ epoch: 5 as Epoch })).toMatchObject({ code: 'ticket-tombstone' });
    lastLease += 1;
    const newer = { lease: lastLease as LeaseNumber, uid, job: 'newer' as JobId, epoch: 5 as Epoch };
    await lab.prepare(controller, 'n1', newer);
    const older = { epoch: 5 as Epoch, lease: (lease - 1) as LeaseNumber };
    expect(await at(older)).toMatchObject({ code: 'ticket-lease' });
    const good = await lab.ticket(controller, 'n1', { ...nextLease().claims, epoch: 5 as Epoch });
    const changed = `${good.slice(0, 40)}${good[40] === 'A' ? 'B' : 'A'}${good.slice(41)}`;
    expect(await controller.call('n1', 'prepare', { ticket: changed })).toMatchObject({
      code: 'ticket-signature',
    });
    expect(await controller.call('n1', 'prepare', { ticket: '' })).toMatchObject({
      code: 'ticket-missing',
    });
  });

  test('for a uid that the node knows, or while its name service cannot prove anything', async () => {
    const { claims, uid } = nextLease();
    await n1.must(['useradd', '--uid', String(uid), '--no-create-home', 'squatter']);
    const ask = async () =>
      controller.call('n1', 'prepare', { ticket: await lab.ticket(controller, 'n1', claims) });
    expect(await ask()).toMatchObject({ code: 'uid-taken' });
    await n1.must(['userdel', 'squatter']);
    await n1.must(['mv', '/etc/passwd', '/etc/passwd.away']);
    try {
      expect(await ask()).toMatchObject({ code: 'name-service' });
    } finally {
      await n1.must(['mv', '/etc/passwd.away', '/etc/passwd']);
    }
    expect(await ask()).toMatchObject({ created: true });
  });

  test('while the storage of the workspace is not mounted', async () => {
    const n2 = lab.node('n2');
    await n2.must(['umount', '--lazy', '/shared']);
    const ticket = await lab.ticket(controller, 'n2', nextLease().claims);
    expect(await controller.call('n2', 'prepare', { ticket })).toMatchObject({ code: 'mount-changed' });
    await n2.powerOff();
    await n2.boot();
    await lab.installUnits(n2);
  });

  test('for an operator, another worker, a storage host, or root of its own node', async () => {
    const { drain, ticket } = await prepared();
    const operator = await lab.driver('ctl', 'operator', 'ctl');
    const worker = await lab.driver('n2', 'worker', 'n2');
    const storage = await lab.driver('ctl', 'storage', 'io1');
    const local = await lab.driver('n1', 'operator', 'n1');
    const socket = '/run/xce-sandbox/main/worker.sock';
    for (const [driver, node] of [
      [operator, 'n1'],
      [worker, 'n1'],
      [storage, 'n1'],
      [local, socket],
    ] as const) {
      expect(await driver.call(node, 'prepare', { ticket })).toMatchObject({ code: 'peer-role' });
      expect(await driver.call(node, 'drain', lab.drainRequest(drain))).toMatchObject({ code: 'peer-role' });
      expect(await driver.stream(node, 'step', lab.step(ticket, ['true'])).end).toMatchObject({
        code: 'peer-role',
      });
      expect(await driver.call(node, 'challenge', { purpose: 'ticket' })).toMatchObject({
        code: 'peer-role',
      });
      expect(await driver.call(node, 'challenge', { purpose: 'hello' })).toHaveProperty('workerKey');
    }
    expect(await operator.call('n1', 'status', {})).toHaveProperty('sandboxes');
    expect(await local.call(socket, 'status', {})).toHaveProperty('sandboxes');
    for (const driver of [worker, storage]) {
      expect(await driver.call('n1', 'status', {})).toMatchObject({ code: 'peer-role' });
    }
  });
});

/** The audit entries about a lease, as the journal of the node has them. */
const auditOf = async (node: Node, lease: number): Promise<readonly Record<string, string>[]> => {
  await node.must(['journalctl', '--sync']);
  const argv = [
    'journalctl',
    '-o',
    'json',
    '--no-pager',
    `MESSAGE_ID=${AUDIT_MESSAGE_ID}`,
    `XCE_LEASE=${lease}`,
  ];
  const lines = (await node.must(argv)).split('\n').filter((line) => line !== '');
  return lines.map((line) => JSON.parse(line) as Record<string, string>);
};

test('each privileged action leaves one entry in the journal, with fields that a job cannot forge', async () => {
  const { lease, uid, run, drain, job } = await prepared();
  await run(['true']).end;
  await controller.must('n1', 'drain', lab.drainRequest(drain));
  expect(await run(['true']).end).toMatchObject({ code: 'ticket-tombstone' });
  const entries = await auditOf(n1, lease);
  const about = {
    XCE_LEASE: String(lease),
    XCE_JOB: job,
    XCE_UID: String(uid),
    XCE_CALLER: 'controller ctl',
  };
  const trusted = { _SYSTEMD_UNIT: UNIT, _UID: '0', PRIORITY: '5', SYSLOG_IDENTIFIER: 'xce-sandbox-worker' };
  const done = { ...about, ...trusted, XCE_VERDICT: 'done', XCE_CODE: 'ok' };
  expect(entries).toMatchObject([
    { ...done, XCE_VERB: 'prepare', MESSAGE: `controller ctl: prepare lease ${lease}: done` },
    { ...done, XCE_VERB: 'step' },
    { ...done, XCE_VERB: 'drain' },
    { ...about, ...trusted, XCE_VERB: 'step', XCE_VERDICT: 'refused', XCE_CODE: 'ticket-tombstone' },
  ]);
});

test('a worker counts what it does, and shows it to root of its node and to operators', async () => {
  const { run } = await prepared();
  await run(['sh', '-c', 'exit 3']).end;
  const local = (await n1.must(['xce-sandbox', 'worker', 'metrics'])).split('\n');
  expect(local).toContain('# TYPE xce_worker_requests_total counter');
  for (const start of [
    'xce_worker_steps_ended_total{result="exit-code"} ',
    'xce_worker_requests_total{verb="step",code="ok"} ',
    'xce_worker_certificate_remaining_seconds ',
    'xce_worker_sandboxes{state="ready"} ',
  ]) {
    const value = Number(local.find((line) => line.startsWith(start))?.slice(start.length));
    expect(value).toBeGreaterThan(0);
  }
  const json = JSON.parse(await n1.must(['xce-sandbox', 'worker', 'metrics', '--json'])) as unknown;
  expect(json).toMatchObject({ node: 'n1', families: expect.any(Array) });
  const operator = await lab.driver('ctl', 'operator', 'ctl');
  expect(await operator.call('n1', 'metrics', {})).toHaveProperty('families');
  const worker = await lab.driver('n2', 'worker', 'n2');
  expect(await worker.call('n1', 'metrics', {})).toMatchObject({ code: 'peer-role' });
});

describe('the socket in the sandbox', () => {
  const AGENT = 'exec "$PRTE_MCA_plm_ssh_agent" "$@"';

  const pair = async () => {
    const own = await prepared();
    await lab.prepare(controller, 'n2', own.claims);
    const agent = (kind: 'head' | 'task', ...args: readonly string[]) =>
      own.run(['sh', '-c', AGENT, 'sh', ...args], { kind });
    return { ...own, agent };
  };

  test('starts a launcher daemon on another node of the job, and its head is told of it', async () => {
    const { agent, lease } = await pair();
    const head = agent('head', 'n2', '/usr/bin/prted', '--version');
    expect(await head.end).toBeUndefined();
    expect(head.stdout()).toMatch(/PRTE|prte/);
    const events = head.frames.flatMap((frame) => ('event' in frame ? [frame.event] : []));
    expect(events.map(({ event }) => event)).toEqual(['started', 'daemon-started', 'daemon-ended', 'ended']);
    expect(events[1]).toMatchObject({
      node: 'n2',
      unit: expect.stringMatching(
        new RegExp(`^xce-main-${lease}\\.j${lease}\\.0\\.step\\.d[0-9a-f]{14}\\.service$`),
      ),
    });
    expect(events[2]).toMatchObject({
      node: 'n2',
      outcome: { result: 'success', code: 'exited', status: 0 },
    });
    expect((await auditOf(n1, lease)).at(-1)).toMatchObject({
      XCE_CALLER: expect.stringMatching(/^sandbox of lease \d+, uid \d+, pid \d+$/),
      XCE_VERB: 'daemon',
      XCE_VERDICT: 'done',
      XCE_JOB: `j${lease}`,
    });
    expect((await auditOf(lab.node('n2'), lease)).at(-1)).toMatchObject({
      XCE_CALLER: 'worker n1',
      XCE_VERB: 'spawn',
      XCE_VERDICT: 'done',
      XCE_JOB: `j${lease}`,
    });
  });

  test('tells a batch script’s agent the status, and no head', async () => {
    const { agent } = await pair();
    const task = agent('task', 'n2', '/usr/bin/prted', '--no-such-option');
    const ended = await task.event('ended');
    expect(ended).not.toMatchObject({ outcome: { status: 0 } });
    expect(task.frames.some((frame) => 'event' in frame && frame.event.event.startsWith('daemon'))).toBe(
      false,
    );
  });

  test('never ends well for a node outside the job, another program or a node that is not prepared', async () => {
    const { agent } = await pair();
    for (const args of [
      ['ctl', '/usr/bin/prted', '--version'],
      ['localhost', '/usr/bin/prted', '--version'],
      ['n2', '/bin/sh', '-c', 'true'],
    ]) {
      expect(await agent('head', ...args).event('ended')).not.toMatchObject({ outcome: { status: 0 } });
    }
    const alone = await prepared();
    const head = alone.run(['sh', '-c', AGENT, 'sh', 'n2', '/usr/bin/prted', '--version'], { kind: 'head' });
    expect(await head.event('ended')).not.toMatchObject({ outcome: { status: 0 } });
  });

  test('lets prterun run over two nodes, and the truth about its daemons comes out whatever prterun says', async () => {
    const { run, uid } = await pair();
    const mpirun = (...command: readonly string[]) =>
      run(['prterun', '--host', 'n1:2,n2:2', '-n', '4', ...command], { kind: 'head' });
    const outcomes = (stream: LabStream, event: string) =>
      stream.frames.flatMap((frame) =>
        'event' in frame && frame.event.event === event ? [frame.event] : [],
      );
    const good = mpirun('hostname');
    expect(await good.end).toBeUndefined();
    expect(good.stdout().split('\n').sort()).toEqual(['', 'n1', 'n1', 'n2', 'n2']);
    expect(outcomes(good, 'daemon-ended')).toMatchObject([
      { node: 'n2', outcome: { result: 'success', code: 'exited', status: 0, stopped: false } },
    ]);
    const bad = mpirun('sh', '-c', 'echo up; exec sleep 1000');
    await until('all ranks run', async () => (bad.stdout().match(/up/g) ?? []).length === 4);
    await lab.node('n2').must(['pkill', '-KILL', '-u', String(uid), 'prted']);
    expect(await bad.end).toBeUndefined();
    expect(outcomes(bad, 'daemon-ended')).toMatchObject([
      { node: 'n2', outcome: { code: 'killed', status: 9 } },
    ]);
    await until('nothing of it is left', async () => (await processesOf(lab.node('n2'), uid)) === '');
  });

  test('serves nobody but the uid of its lease, and nothing but daemons', async () => {
    const { lease, run } = await prepared();
    const other = await prepared();
    const order = JSON.stringify({
      id: 1,
      do: 'call',
      node: '/run/xce/agent.sock',
      verb: 'status',
      request: {},
    });
    const ask = run(['sh', '-c', `echo '${order}' | node /usr/local/lib/driver.mjs ''`]);
    await ask.end;
    expect(ask.stdout()).toContain('"peer-role"');
    const path = `/run/xce-sandbox/main/box/${lease}/agent.sock`;
    expect((await n1.must(['stat', '-c', '%a %u', path])).trim()).toBe(`600 ${POOL.first + lease}`);
    const foreign = order.replace('/run/xce/agent.sock', path);
    const strange = other.run(['sh', '-c', `echo '${foreign}' | node /usr/local/lib/driver.mjs ''`]);
    await strange.end;
    expect(strange.stdout()).toMatch(/ENOENT|EACCES|worker-unreachable/);
  });

  test('of a worker of a node outside the lease starts nothing', async () => {
    const { lease, uid } = await prepared({ nodes: ['n1', 'ctl'] as NodeName[] });
    const stranger = await lab.driver('n2', 'worker', 'n2');
    const spawn = {
      lease,
      uid,
      epoch: 1,
      argv: [Buffer.from('/usr/bin/prted').toString('base64')],
      environment: [],
    };
    expect(await stranger.stream('n1', 'spawn', spawn).end).toMatchObject({ code: 'peer-role' });
    const member = await lab.driver('n2', 'worker', 'ctl');
    expect(await member.stream('n1', 'spawn', { ...spawn, epoch: 2 }).end).toMatchObject({
      code: 'ticket-epoch',
    });
    const shell = [Buffer.from('/bin/sh').toString('base64')];
    expect(await member.stream('n1', 'spawn', { ...spawn, argv: shell }).end).toMatchObject({
      code: 'mpi-agent',
    });
  });
});

describe('a worker that ends', () => {
  test('in order ends its steps and tells so, and the next one goes on with its sandboxes', async () => {
    const { lease, run, uid } = await prepared();
    const sleep = run(['sleep', '1000']);
    await sleep.event('started');
    const before = await n1.must([
      'systemctl',
      'show',
      '-p',
      'InvocationID',
      '--value',
      `xce-main-${lease}.j${lease}.0.anchor.service`,
    ]);
    await n1.must(['systemctl', 'restart', UNIT]);
    expect(await sleep.event('ended')).toMatchObject({ outcome: { stopped: true } });
    expect(await processesOf(n1, uid)).toBe('');
    expect(await stateOf('n1', lease)).toBe('ready');
    const after = await n1.must([
      'systemctl',
      'show',
      '-p',
      'InvocationID',
      '--value',
      `xce-main-${lease}.j${lease}.0.anchor.service`,
    ]);
    expect(after).toBe(before);
    expect(await run(['true']).end).toBeUndefined();
  });

  test('by SIGKILL leaves steps to the next one, which ends them and keeps the sandbox', async () => {
    const { lease, run, uid } = await prepared();
    const sleep = run(['sh', '-c', 'trap "" PIPE; exec sleep 1000']);
    await sleep.event('started');
    await n1.must(['kill', '-KILL', await mainPid(n1)]);
    expect(await sleep.end).toMatchObject({ code: 'worker-unreachable' });
    await until('the worker is back', answered);
    expect(await stateOf('n1', lease)).toBe('ready');
    expect(await processesOf(n1, uid)).toBe('');
    expect(await run(['true']).end).toBeUndefined();
  });

  test('by SIGKILL at any moment of a prepare leaves a lease that drain certifies', async () => {
    for (const delayMs of [0, 60, 300]) {
      const { claims, drain, lease } = nextLease();
      const ticket = await lab.ticket(controller, 'n1', claims);
      const asked = controller.call('n1', 'prepare', { ticket });
      await new Promise((resolve) => setTimeout(resolve, delayMs));
      await n1.must(['kill', '-KILL', await mainPid(n1)]);
      await asked;
      await until('the worker is back', answered);
      expect(await controller.must('n1', 'drain', lab.drainRequest(drain))).toHaveProperty('certificate');
      expect(await unitsOf(n1, lease)).toEqual([]);
    }
  });

  test('by its watchdog, because it hangs, is replaced by one that goes on with its sandboxes', async () => {
    const { lease, run, uid } = await prepared();
    const sleep = run(['sleep', '1000']);
    await sleep.event('started');
    await n1.must(['mkdir', '-p', `/run/systemd/system/${UNIT}.d`]);
    await n1.writeFile(`/run/systemd/system/${UNIT}.d/watchdog.conf`, '[Service]\nWatchdogSec=15\n', {
      mode: 0o644,
    });
    await n1.must(['systemctl', 'daemon-reload']);
    await n1.must(['systemctl', 'restart', UNIT]);
    await sleep.end;
    const before = await mainPid(n1);
    const fed = () => n1.must(['systemctl', 'show', '-p', 'WatchdogTimestampMonotonic', '--value', UNIT]);
    const first = await fed();
    await until('its loop feeds the watchdog', async () => (await fed()) !== first);
    const second = run(['sleep', '1000']);
    await second.event('started');
    await n1.must(['kill', '-STOP', before]);
    await until('another worker runs', async () => !['0', before].includes(await mainPid(n1)), 300);
    await until('the worker is back', answered);
    expect(await second.end).toMatchObject({ code: 'worker-unreachable' });
    expect(await journalSays('Watchdog timeout')).toBe(true);
    expect(await stateOf('n1', lease)).toBe('ready');
    expect(await processesOf(n1, uid)).toBe('');
    expect(await run(['true']).end).toBeUndefined();
    await n1.must(['rm', `/run/systemd/system/${UNIT}.d/watchdog.conf`]);
    await n1.must(['systemctl', 'daemon-reload']);
  });

  test('is started by the first connection when systemd holds its sockets', async () => {
    await n1.must(['systemctl', 'stop', UNIT]);
    await lab.installUnits(n1, 'sockets');
    expect((await n1.exec(['systemctl', 'is-active', UNIT])).stdout.toString().trim()).toBe('inactive');
    await until('the worker answers', answered);
    const local = await lab.driver('n1', 'operator', 'n1');
    expect(await local.call('/run/xce-sandbox/main/worker.sock', 'status', {})).toHaveProperty('sandboxes');
    await n1.must([
      'systemctl',
      'stop',
      'xce-sandbox-worker-tls.socket',
      'xce-sandbox-worker-local.socket',
      UNIT,
    ]);
    await n1.must(['systemctl', 'start', UNIT]);
  });

  test('does not start without its memory while it has its key, nor the other way round', async () => {
    const state = '/var/lib/xce-sandbox/main';
    await n1.must(['systemctl', 'stop', UNIT]);
    for (const part of ['seen', 'worker.key']) {
      await n1.must(['mv', `${state}/${part}`, '/root/away']);
      const end = await n1.exec(['xce-sandbox-worker']);
      expect([end.exitCode, end.stderr.toString()]).toEqual([74, expect.stringContaining('is lost')]);
      await n1.must(['rm', '-rf', `${state}/${part}`]);
      await n1.must(['mv', '/root/away', `${state}/${part}`]);
    }
    await n1.must(['systemctl', 'start', UNIT]);
    expect(await answered()).toBe(true);
  });

  test('is alone: a second one on the node refuses to start', async () => {
    const second = await n1.exec(['xce-sandbox-worker']);
    expect(second.exitCode).toBe(77);
    expect(second.stderr.toString()).toContain('[sandbox-exists]');
    expect(await answered()).toBe(true);
  });
});

test('a worker that is reloaded has new certificates, cuts who is revoked, and its steps go on', async () => {
  const { run } = await prepared();
  const kept = run(['sleep', '1000']);
  await kept.event('started');
  const thief = await lab.driver('ctl', 'operator', 'thief');
  expect('nonce' in (await thief.call('n1', 'challenge', { purpose: 'hello' }))).toBe(true);
  const pid = await mainPid(n1);

  await lab.renewCertificates(n1, 'thief');
  await n1.writeFile('/etc/xce-sandbox/pki/host.key', 'no key', { mode: 0o600 });
  await n1.must(['systemctl', 'reload', UNIT]);
  await until('the refusal is in the journal', () => journalSays('the certificates in use stay'));
  expect('nonce' in (await thief.call('n1', 'challenge', { purpose: 'hello' }))).toBe(true);

  await lab.renewCertificates(n1, 'thief');
  await n1.must(['systemctl', 'reload', UNIT]);
  await until('the reload is in the journal', () => journalSays('1 certificates are revoked'));
  expect(await thief.call('n1', 'challenge', { purpose: 'hello' })).toMatchObject({ code: 'tls' });
  expect(await mainPid(n1)).toBe(pid);
  expect(await answered()).toBe(true);
  kept.signal(9);
  expect(await kept.event('ended')).toMatchObject({ outcome: { code: 'killed', stopped: false } });
});

test('a node that was switched off has nothing left, and certifies with its new boot id', async () => {
  const { lease, drain } = await prepared();
  const before = await controller.must('n1', 'challenge', { purpose: 'hello' });
  await n1.killHard();
  await n1.boot();
  await n1.must(['systemctl', 'start', UNIT]);
  await until('the worker answers', answered);
  const after = await controller.must('n1', 'challenge', { purpose: 'hello' });
  expect(after.workerKey).toBe(before.workerKey);
  expect(after.bootId).not.toBe(before.bootId);
  expect(await stateOf('n1', lease)).toBe('lost');
  expect(await controller.must('n1', 'drain', lab.drainRequest(drain))).toHaveProperty('certificate');
});

/** What a worker and its node have of all sandboxes together. */
const holdingsOf = async (node: Node): Promise<Readonly<Record<string, number>>> => {
  const pid = await mainPid(node);
  const text = await node.must([
    ...['sh', '-c'],
    `echo descriptors $(ls /proc/${pid}/fd | wc -l)
     echo threads $(ls /proc/${pid}/task | wc -l)
     echo units $(systemctl list-units --all --plain --no-legend 'xce-main-*' | wc -l)
     echo unit-files $(ls /run/systemd/transient | wc -l)
     echo names $(find /run/xce-sandbox /run/userdb /var/lib/xce-sandbox -not -path '*/seen/*' | wc -l)
     echo mounts $(wc -l </proc/mounts)
     echo processes $(ps -e | wc -l)
     echo kib $(sed -n 's/^VmRSS:\\s*\\([0-9]*\\) kB/\\1/p' /proc/${pid}/status)`,
  ]);
  return Object.fromEntries(
    text
      .trim()
      .split('\n')
      .map((line) => [line.trim().split(' ')[0] ?? '', Number(line.trim().split(' ')[1])]),
  );
};

/** Starts the worker anew with these further settings of its unit, or with none. */
const restartWith = async (settings: string): Promise<void> => {
  const path = `/run/systemd/system/${UNIT}.d/test.conf`;
  await n1.writeFile(path, `[Service]\n${settings}\n`);
  await n1.must(['systemctl', 'daemon-reload']);
  await n1.must(['systemctl', 'restart', UNIT]);
  await until('the worker answers', answered);
};

/** A sandbox that stays, and a lease for one that goes with its launch. */
const failingLane = async () => ({ ...(await prepared()), brief: nextLease() });
type Lane = Awaited<ReturnType<typeof failingLane>>;

/** Starts a step and ends its launch: once the step has ended badly, or has been given up. */
const runStep = async (
  { lease, ticket }: { readonly lease: number; readonly ticket: string },
  head: Partial<RequestOf<'step'>> & { readonly launch: string },
  argv: readonly string[],
  end: 'ended' | 'cancel' = 'ended',
): Promise<void> => {
  const step = controller.stream('n1', 'step', lab.step(ticket, argv, head));
  if (end === 'cancel') {
    await step.event('started');
    step.cancel();
  } else {
    const { outcome } = await step.event('ended');
    expect(outcome).not.toMatchObject({ status: 0 });
  }
  await controller.must('n1', 'stop', { lease, launch: head.launch });
};

/** Ways in which a launch fails. */
const FAILURES: readonly ((lane: Lane, launch: string) => Promise<void>)[] = [
  async ({ brief }, launch) => {
    const changes = { ...brief.claims, workspace: { storage: 'shared', path: '/etc' } };
    const ticket = await lab.ticket(controller, 'n1', changes);
    const refused = { code: 'sandbox-refused' };
    expect(await controller.call('n1', 'prepare', { ticket, launch })).toMatchObject(refused);
  },
  // Makes a sandbox of its own, which goes with it.
  async ({ brief: { claims, lease } }, launch) => {
    const ticket = await lab.ticket(controller, 'n1', claims);
    await controller.must('n1', 'prepare', { ticket, launch });
    await runStep({ lease, ticket }, { launch }, ['sh', '-c', 'exit 1']);
    expect(await stateOf('n1', lease)).toBeUndefined();
  },
  (lane, launch) => runStep(lane, { launch }, ['no-such-command']),
  (lane, launch) => {
    const directory = Buffer.from('/no/such/directory').toString('base64');
    return runStep(lane, { launch, directory }, ['true']);
  },
  (lane, launch) => runStep(lane, { launch }, ['sleep', '1000'], 'cancel'),
];

test('two hundred launches that fail leave nothing behind', async () => {
  const pid = await mainPid(n1);
  const lanes = await Promise.all(Array.from({ length: 5 }, failingLane));
  let launches = 0;
  const failAll = async (rounds: number): Promise<void> => {
    const failLane = async (lane: Lane): Promise<void> => {
      for (let round = 0; round < rounds; round += 1) {
        for (const fail of FAILURES) {
          launches += 1;
          await fail(lane, `l${launches}`);
        }
      }
    };
    await Promise.all(lanes.map(failLane));
  };
  await failAll(2);
  const before = await holdingsOf(n1);
  await failAll(6);
  expect(launches).toBe(200);
  /** What there is more of than before, beyond what other tests have left and what comes with a connection. */
  const excess = async (): Promise<readonly string[]> => {
    const now = await holdingsOf(n1);
    return Object.entries(before).flatMap(([what, count]) => {
      const more = (now[what] ?? 0) - count;
      // V8 collects when it sees fit.
      return more > (what === 'kib' ? 64 << 10 : 4) ? [`${what}: ${more} more`] : [];
    });
  };
  // Processes, units and their files go after the stop that they belong to.
  await expect.poll(excess, { timeout: 60_000, interval: 1000 }).toEqual([]);
  expect(await mainPid(n1)).toBe(pid);
  for (const { drain } of lanes) {
    expect(await controller.must('n1', 'drain', lab.drainRequest(drain))).toHaveProperty('certificate');
  }
});

test('an idle worker sleeps: there are five seconds in which its main thread wakes up for nothing', async () => {
  await restartWith('');
  const pid = await mainPid(n1);
  const wakeUps = async (): Promise<number> => {
    const status = await n1.must(['cat', `/proc/${pid}/task/${pid}/status`]);
    return Number(/^voluntary_ctxt_switches:\s+(\d+)$/m.exec(status)?.[1]);
  };
  // Connections of other tests close, and V8 collects garbage once it has been left alone for some seconds; whatever
  // wakes up again and again does so in every window.
  const windows: number[] = [];
  while (windows.length < 8 && !windows.some((count) => count <= 2)) {
    const before = await wakeUps();
    await new Promise((resolve) => setTimeout(resolve, 5000));
    windows.push((await wakeUps()) - before);
  }
  expect(Math.min(...windows)).toBeLessThanOrEqual(2);
});

test('an idle worker gives back the memory that only its start and its work needed', async () => {
  await restartWith('WatchdogSec=10');
  const pid = await mainPid(n1);
  /** Of its program and libraries. */
  const residentKiB = async (): Promise<number> => {
    const status = await n1.must(['cat', `/proc/${pid}/status`]);
    return Number(/^RssFile:\s+(\d+) kB$/m.exec(status)?.[1]);
  };
  expect(await answered()).toBe(true);
  const before = await residentKiB();
  await until(`it has less than half of ${before} KiB`, async () => (await residentKiB()) < before / 2, 600);
  expect(await answered()).toBe(true);
});
