import { chownSync, lstatSync, mkdirSync, statSync, symlinkSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest';
import type { Epoch, NodeName } from '../../src/base/ids.ts';
import type { SandboxSpec } from '../../src/sandbox/backend.ts';
import type { Cluster } from '../support/cluster/cluster.ts';
import type { Node } from '../support/cluster/node.ts';
import { baseOf, codeOf, Driver, HOUR_MS, kindsOf, type Lab, nextSpec, openLab, sh } from './sandbox-lab.ts';

let lab: Lab;
let cluster: Cluster;
let n1: Node;
let driver: Driver;

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

describe('a sandbox', () => {
  test('is found again by an equal request, and refused to one with other terms', async () => {
    const spec = nextSpec();
    const first = await driver.call('create', spec, HOUR_MS);
    lab.open.push(spec);
    expect(first).toMatchObject({
      unit: `${baseOf(spec)}.anchor.service`,
      created: true,
      workspace: `/shared/xce/main/${spec.job}.0/work`,
      mounts: [{ path: '/shared/xce' }],
    });
    const again = await driver.call('create', { ...spec, epoch: 2 as Epoch }, HOUR_MS);
    expect(again).toEqual({ ...first, created: false });
    const otherTerms = { ...spec, nodes: ['n1'] as NodeName[] };
    expect(await codeOf(driver.call('create', otherTerms, HOUR_MS))).toBe('sandbox-exists');
    expect(await driver.call('isAlive', spec, first.invocationId)).toBe(true);
    expect(await driver.call('isAlive', spec, '0'.repeat(32))).toBe(false);
  });

  test('ends by its deadline though the worker is dead, and takes its steps along', async () => {
    const spec = nextSpec();
    lab.open.push(spec);
    const own = await Driver.start(n1);
    const { invocationId } = await own.call('create', spec, HOUR_MS);
    await own.start(spec, invocationId, 'a', ['sleep', '600']);
    const armed = Date.now();
    await own.call('armDeadline', spec, 3000);
    const ended = driver.call('watchEnd', spec, invocationId);
    await own.kill();
    await ended;
    expect(Date.now() - armed).toBeGreaterThan(2900);
    expect(Date.now() - armed).toBeLessThan(8000);
    expect(await driver.call('isAlive', spec, invocationId)).toBe(false);
    expect((await n1.exec(['pgrep', '-u', String(spec.uid)])).stdout.toString()).toBe('');
    expect(await codeOf(driver.start(spec, invocationId, 'b', ['true']))).toBe('sandbox-lost');
  });

  test('lasts as long as the newest deadline says', async () => {
    const spec = nextSpec();
    lab.open.push(spec);
    const { invocationId } = await driver.call('create', spec, 2500);
    for (const ms of [HOUR_MS, 5000, HOUR_MS]) await driver.call('armDeadline', spec, ms);
    const timers = await n1.must(['systemctl', 'list-timers', '--all', '--no-legend', `${baseOf(spec)}.*`]);
    expect(timers.trim().split('\n')).toHaveLength(1);
    await sleep(6000);
    expect(await driver.call('isAlive', spec, invocationId)).toBe(true);
    const armed = Date.now();
    const ended = driver.call('watchEnd', spec, invocationId);
    await driver.call('armDeadline', spec, 0);
    await ended;
    expect(Date.now() - armed).toBeLessThan(4000);
  });

  test('is watched without waking the watcher', async () => {
    const spec = nextSpec();
    lab.open.push(spec);
    const own = await Driver.start(n1);
    const { invocationId } = await own.call('create', spec, HOUR_MS);
    const ended = own.call('watchEnd', spec, invocationId);
    await own.call('isAlive', spec, invocationId);
    await sleep(1000);
    const before = await own.call('usage');
    await sleep(5000);
    const after = await own.call('usage');
    // Reading the question and writing the answer takes a few.
    expect(after.switches - before.switches).toBeLessThan(15);
    await n1.must(['systemctl', 'stop', `${baseOf(spec)}.anchor.service`]);
    await ended;
    await own.close();
  });

  test('goes on when its worker crashes, and a new worker ends steps that nobody reads', async () => {
    const spec = nextSpec();
    lab.open.push(spec);
    const own = await Driver.start(n1);
    const { invocationId } = await own.call('create', spec, HOUR_MS);
    await own.start(spec, invocationId, 'a', ['sleep', '600']);
    await own.kill();
    expect(await driver.call('isAlive', spec, invocationId)).toBe(true);
    expect((await n1.exec(['pgrep', '-u', String(spec.uid), 'sleep'])).exitCode).toBe(0);
    await driver.call('stopSteps', spec);
    expect((await n1.exec(['pgrep', '-u', String(spec.uid)])).exitCode).toBe(1);
    expect((await driver.run(spec, invocationId, 'a', ['true'])).result.result).toBe('success');
  });

  test('can be made after its making was cut short at any moment', async () => {
    const spec = nextSpec();
    lab.open.push(spec);
    for (const ms of [5, 20, 60, 120, 200, 350, 500]) {
      const own = await Driver.start(n1);
      const made = codeOf(own.call('create', spec, HOUR_MS));
      await sleep(ms);
      await own.kill();
      await made;
    }
    const { invocationId } = await driver.call('create', spec, HOUR_MS);
    expect((await driver.run(spec, invocationId, 'a', ['true'])).result.result).toBe('success');
  });

  test('survives a reload and a re-execution of systemd', async () => {
    const spec = nextSpec();
    const id = await lab.create(spec);
    await driver.start(spec, id, 'a', sh('echo x >/dev/shm/x; echo up; read line; cat /dev/shm/x; exit 7'));
    await n1.must(['systemctl', 'daemon-reload']);
    await n1.must(['systemctl', 'daemon-reexec']);
    expect(await driver.call('isAlive', spec, id)).toBe(true);
    await driver.call('write', 'a', Buffer.from('\n').toString('base64'), true);
    const end = await driver.end('a');
    expect([end.result.status, end.stdout.toString()]).toEqual([7, 'up\nx\n']);
    expect((await driver.run(spec, id, 'b', ['cat', '/dev/shm/x'])).stdout.toString()).toBe('x\n');
    const armed = Date.now();
    await driver.call('armDeadline', spec, 4000);
    await n1.must(['systemctl', 'daemon-reload']);
    await n1.must(['systemctl', 'daemon-reexec']);
    await driver.call('watchEnd', spec, id);
    expect(Date.now() - armed).toBeGreaterThan(3900);
    expect(Date.now() - armed).toBeLessThan(9000);
  });

  test('and its steps survive a restart of the system bus', async () => {
    const spec = nextSpec();
    const own = await Driver.start(n1);
    const { invocationId } = await own.call('create', spec, HOUR_MS);
    lab.open.push(spec);
    const ended = own.call('watchEnd', spec, invocationId);
    await own.start(spec, invocationId, 'a', sh('read line; exit 7'));
    await n1.must(['systemctl', 'restart', 'dbus.service']);
    expect(await own.call('isAlive', spec, invocationId)).toBe(true);
    await sleep(1000);
    await own.call('write', 'a', Buffer.from('\n').toString('base64'), true);
    expect((await own.end('a')).result).toMatchObject({ code: 'exited', status: 7 });
    expect((await own.run(spec, invocationId, 'b', ['true'])).result.result).toBe('success');
    await n1.must(['systemctl', 'stop', `${baseOf(spec)}.anchor.service`]);
    await ended;
    await own.close();
  });

  test('ends within its grace though a step ignores every signal it can', async () => {
    const spec = nextSpec();
    const id = await lab.create(spec);
    await driver.start(spec, id, 'a', sh('trap "" TERM HUP INT; while :; do sleep 1; done'));
    const began = Date.now();
    await driver.call('destroy', spec);
    expect(Date.now() - began).toBeLessThan(8000);
    expect((await driver.end('a')).result).toMatchObject({ stopped: true });
    await driver.call('destroy', spec);
  });

  test('leaves no unit behind after 200 steps that fail', async () => {
    const spec = nextSpec();
    const id = await lab.create(spec);
    const count = async (): Promise<number> => {
      const text = await n1.must(['systemctl', 'list-units', '--all', '--plain', '--no-legend', 'xce-*']);
      return text.trim().split('\n').length;
    };
    const before = await count();
    const workers = [0, 1, 2, 3].map(async (worker) => {
      const seen: number[] = [];
      for (let round = 0; round < 50; round += 1) {
        seen.push((await driver.run(spec, id, `s${worker}x${round}`, ['false'])).result.status);
      }
      return seen;
    });
    expect((await Promise.all(workers)).flat()).toEqual(Array(200).fill(1));
    expect(await count()).toBe(before);
    expect(await n1.must(['ls', '-A', `/run/xce-sandbox/main/box/${spec.lease}/input`])).toBe('');
  });

  test('refuses a step id that runs, and that step goes on', async () => {
    const spec = nextSpec();
    const id = await lab.create(spec);
    await driver.start(spec, id, 'a', sh('read line; echo $line'));
    const other = await Driver.start(n1);
    expect(await codeOf(other.start(spec, id, 'a', ['true']))).toBe('systemd');
    await other.close();
    await driver.call('write', 'a', Buffer.from('on\n').toString('base64'), true);
    expect((await driver.end('a')).stdout.toString()).toBe('on\n');
  });
});

describe('what stands in the way of a sandbox', () => {
  test('is a running unit of the name that is not ours; it runs on', async () => {
    const spec = nextSpec();
    const unit = `${baseOf(spec)}.anchor.service`;
    await n1.must(['systemd-run', '-q', `--unit=${unit}`, 'sleep', '600']);
    const pid = await n1.must(['systemctl', 'show', '--property=MainPID', unit]);
    expect(await codeOf(driver.call('create', spec, HOUR_MS))).toBe('sandbox-exists');
    expect(await n1.must(['systemctl', 'show', '--property=MainPID', unit])).toBe(pid);
    await driver.call('destroy', spec);
    expect(await n1.must(['systemctl', 'show', '--property=MainPID', unit])).toBe(pid);
    expect(kindsOf(await driver.call('scan', spec))).toEqual(['unit']);
    await n1.must(['systemctl', 'stop', unit]);
  });

  test('is no failed unit and no unit file that an earlier run has left', async () => {
    const spec = nextSpec();
    const unit = `${baseOf(spec)}.anchor.service`;
    await n1.exec(['systemd-run', '-q', '--wait', `--unit=${unit}`, 'false']);
    expect((await n1.exec(['systemctl', 'is-failed', unit])).exitCode).toBe(0);
    await n1.must(['mkdir', '-p', '/run/systemd/transient']);
    const text = '[Unit]\nDescription=left\n';
    await n1.writeFile(`/run/systemd/transient/${baseOf(spec)}.slice`, text);
    await n1.writeFile(`/run/systemd/transient/${baseOf(spec)}.step.a.service`, text);
    const id = await lab.create(spec);
    expect((await driver.run(spec, id, 'a', ['true'])).result.result).toBe('success');
  });

  test('is a user record of the uid that is not ours; it stays', async () => {
    const spec = nextSpec();
    await n1.must(['mkdir', '-p', '/run/userdb']);
    const record = JSON.stringify({ userName: 'other', uid: spec.uid, gid: spec.uid });
    await n1.writeFile('/run/userdb/other.user', record);
    await n1.must(['ln', '-s', 'other.user', `/run/userdb/${spec.uid}.user`]);
    expect(await codeOf(driver.call('create', spec, HOUR_MS))).toBe('sandbox-exists');
    expect(await n1.must(['readlink', `/run/userdb/${spec.uid}.user`])).toBe('other.user\n');
    expect(kindsOf(await driver.call('scan', spec))).toEqual(['user-record']);
    await n1.must(['rm', '/run/userdb/other.user', `/run/userdb/${spec.uid}.user`]);
    expect(await driver.call('scan', spec)).toEqual([]);
  });

  test('is a workspace of another owner, a link, or one below what others may change', async () => {
    const shared = cluster.sharedPath;
    const base = join(shared, 'xce/main');
    mkdirSync(base, { recursive: true });
    const foreign = nextSpec();
    mkdirSync(join(base, `${foreign.job}.0`));
    chownSync(join(base, `${foreign.job}.0`), 1001, 1001);
    expect(await codeOf(driver.call('create', foreign, HOUR_MS))).toBe('sandbox-exists');
    const linked = nextSpec();
    mkdirSync(join(shared, 'elsewhere'), { recursive: true });
    symlinkSync('/shared/elsewhere', join(base, `${linked.job}.0`));
    expect(await codeOf(driver.call('create', linked, HOUR_MS))).toBe('sandbox-exists');
    expect(lstatSync(join(shared, 'elsewhere')).uid).toBe(0);
    mkdirSync(join(shared, 'loose/below'), { recursive: true });
    chownSync(join(shared, 'loose'), 1001, 1001);
    const loose = nextSpec({ workspaceRoot: '/shared/loose/xce' });
    expect(await codeOf(driver.call('create', loose, HOUR_MS))).toBe('sandbox-refused');
    symlinkSync('/shared/loose', join(shared, 'link'));
    for (const path of ['/shared/link', '/shared/loose/below', '/home', '/run/x', '/', '/shared/../etc']) {
      const spec = nextSpec({ writablePaths: [path] });
      expect([path, await codeOf(driver.call('create', spec, HOUR_MS))]).toEqual([path, 'sandbox-refused']);
    }
    for (const spec of [foreign, linked, loose]) expect(await driver.call('scan', spec)).toEqual([]);
    expect(await n1.must(['ls', '-A', '/run/xce-sandbox/main/box'])).toBe('');
  });

  test('is a workspace that the uid cannot reach', async () => {
    mkdirSync(join(cluster.sharedPath, 'closed'), { mode: 0o700 });
    const spec = nextSpec({ workspaceRoot: '/shared/closed/xce' });
    expect(await codeOf(driver.call('create', spec, HOUR_MS))).toBe('sandbox-refused');
    expect(await driver.call('scan', spec)).toEqual([]);
  });

  test('is never another node of the job that makes the same workspace', async () => {
    const second = await Driver.start(lab.n2);
    await second.call('checkHost');
    for (let round = 0; round < 5; round += 1) {
      const spec = nextSpec();
      const there: SandboxSpec = { ...spec, node: 'n2' as NodeName };
      const [here, peer] = await Promise.all([
        driver.call('create', spec, HOUR_MS),
        second.call('create', there, HOUR_MS),
      ]);
      expect(peer.workspace).toBe(here.workspace);
      const note = sh('echo $XCE_NODE >$XCE_NODE');
      const [a, b] = await Promise.all([
        driver.run(spec, here.invocationId, 'a', note),
        second.run(there, peer.invocationId, 'a', note),
      ]);
      expect([a.result.result, b.result.result]).toEqual(['success', 'success']);
      const facts = statSync(join(cluster.sharedPath, `xce/main/${spec.job}.0/work`));
      expect([facts.uid, facts.gid, facts.mode & 0o7777]).toEqual([spec.uid, spec.uid, 0o700]);
      await Promise.all([driver.call('destroy', spec), second.call('destroy', there)]);
    }
    await second.close();
  });

  test('is a host whose name service does not read the records', async () => {
    const text = await n1.readFile('/etc/nsswitch.conf');
    await n1.writeFile('/etc/nsswitch.conf', text.toString().replaceAll(' systemd', ''));
    expect(await codeOf(driver.call('checkHost'))).toBe('sandbox-refused');
    await n1.writeFile('/etc/nsswitch.conf', text);
    await driver.call('checkHost');
  });
});
