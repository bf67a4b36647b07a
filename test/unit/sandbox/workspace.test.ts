import { chmodSync, mkdirSync, mkdtempSync, rmSync, statSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import type { Attempt, InstanceName, JobId } from '../../../src/base/ids.ts';
import { closeDirectory, openRooted } from '../../../src/os/rooted.ts';
import { runChild } from '../../../src/os/spawn.ts';
import { makeWorkspaceIn, openGate, workspacePaths } from '../../../src/sandbox/workspace.ts';

const key = { instance: 'main' as InstanceName, job: '42' as JobId, attempt: 0 as Attempt };
const UID = 70_000;
const SUBMITTER = 70_900;

let root: string;

beforeEach(() => {
  root = mkdtempSync('/var/lib/xce-workspace-');
  chmodSync(root, 0o711);
});

afterEach(() => {
  rmSync(root, { recursive: true });
});

const make = (): string => {
  const directory = openRooted(root, 'roots');
  try {
    return makeWorkspaceIn(directory, key, UID);
  } finally {
    closeDirectory(directory);
  }
};

const as = async (uid: number, script: string): Promise<number | undefined> => {
  const who = [`--reuid=${uid}`, `--regid=${uid}`, '--clear-groups'];
  const end = await runChild('/usr/bin/setpriv', [...who, '/bin/sh', '-c', script], { timeoutMs: 10_000 });
  return end.exitCode;
};

const ownerOf = (path: string): string => {
  const { uid, gid, mode } = statSync(path);
  return `${uid}:${gid}:${(mode & 0o7777).toString(8)}`;
};

describe('a workspace', () => {
  test('is the uid’s own behind a gate that only its group may pass', () => {
    const path = make();
    const paths = workspacePaths(root, key);
    expect(path).toBe(paths.directory);
    expect(ownerOf(paths.gate)).toBe(`0:${UID}:710`);
    expect(ownerOf(path)).toBe(`${UID}:${UID}:700`);
  });

  test('is the same when another node makes it again, also one whose gate somebody widened', () => {
    make();
    const { gate } = workspacePaths(root, key);
    chmodSync(gate, 0o755);
    make();
    expect(ownerOf(gate)).toBe(`0:${UID}:710`);
  });

  test('keeps its submitter out whatever the job allows, and lets the job in', async () => {
    const path = make();
    expect(await as(UID, `echo x > ${path}/file && chmod 0777 ${path}`)).toBe(0);
    expect(await as(SUBMITTER, `mv ${path}/file ${root}/`)).not.toBe(0);
    expect(await as(SUBMITTER, `cat ${path}/file`)).not.toBe(0);
    expect(await as(UID, `cat ${path}/file`)).toBe(0);
  });

  test('can be reached by everybody once its gate is open, and has the leased gid no more', async () => {
    const path = make();
    writeFileSync(join(path, 'file'), 'x');
    const { gate } = workspacePaths(root, key);
    openGate(gate);
    openGate(gate);
    expect(ownerOf(gate)).toBe('0:0:711');
    chmodSync(path, 0o755);
    expect(await as(SUBMITTER, `cat ${path}/file`)).toBe(0);
  });
});

test('a gate that is a link, or whose parents others may change, is not opened', () => {
  const { gate } = workspacePaths(root, key);
  mkdirSync(join(root, 'main'), { mode: 0o711 });
  mkdirSync(join(root, 'elsewhere'), { mode: 0o700 });
  symlinkSync(join(root, 'elsewhere'), gate);
  expect(() => openGate(gate)).toThrow(expect.objectContaining({ code: 'sandbox-refused' }));
  expect(ownerOf(join(root, 'elsewhere'))).toBe('0:0:700');
  chmodSync(join(root, 'main'), 0o777);
  expect(() => openGate(gate)).toThrow(expect.objectContaining({ code: 'sandbox-refused' }));
});
