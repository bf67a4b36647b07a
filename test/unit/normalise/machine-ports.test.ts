import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { afterEach, expect, test } from 'vitest';
import { processesOf } from '../../../src/normalise/machine-ports.ts';

/** A uid of its own: tests run side by side on one host. */
const UID = 60690;
const children: ChildProcess[] = [];
afterEach(async () => {
  for (const child of children.splice(0)) {
    child.kill('SIGKILL');
    if (child.exitCode === null && child.signalCode === null) await once(child, 'exit');
  }
});

const start = async (...argv: string[]): Promise<ChildProcess> => {
  const child = spawn('/usr/bin/setpriv', argv, { stdio: ['ignore', 'pipe', 'inherit'] });
  children.push(child);
  await once(child.stdout, 'data');
  return child;
};

test('finds a process by any of its uids, gids and groups, and no other', async () => {
  expect(processesOf(UID)).toEqual([]);
  const full = await start(
    `--reuid=${UID}`,
    `--regid=${UID}`,
    '--clear-groups',
    '/bin/sh',
    '-c',
    'echo up; exec sleep 60',
  );
  const real = await start(`--ruid=${UID}`, '/bin/sh', '-pc', 'echo up; exec sleep 60');
  const group = await start(`--rgid=${UID}`, '--keep-groups', '/bin/sh', '-pc', 'echo up; exec sleep 60');
  const member = await start(`--groups=${UID}`, '/bin/sh', '-c', 'echo up; exec sleep 60');
  const pids = processesOf(UID).map(({ pid }) => pid);
  expect(pids.sort()).toEqual([full.pid, real.pid, group.pid, member.pid].sort());
  expect(processesOf(UID)[0]?.command).toMatch(/sleep 60|sh -c/);
  expect(processesOf(UID + 1)).toEqual([]);
});
