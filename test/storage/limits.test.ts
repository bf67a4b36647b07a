import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { bundleFile } from '../support/bundle.ts';
import { furnishNode } from '../support/cluster/furnish.ts';
import { prepareImage } from '../support/cluster/image.ts';
import { prepareLayer } from '../support/cluster/layer.ts';
import { mustRun } from '../support/cluster/process.ts';
import { prepareProduct } from '../support/cluster/product.ts';
import { Scope } from '../support/cluster/scope.ts';
import { Guest, programPath } from '../support/storage/guest.ts';
import type { Limits } from '../support/storage/limits-program.ts';

/** Control group controllers are the kernel's: a container has those that its host does not use in version 1. */
let scope: Scope;
let limits: Limits;

beforeAll(async () => {
  const image = await prepareImage();
  const layers = [await prepareProduct(image), await prepareLayer('nfs'), image];
  scope = await Scope.open(layers.map(({ entry }) => entry));
  const root = join(scope.directory, 'root');
  for (const name of ['root', 'upper', 'work']) mkdirSync(join(scope.directory, name));
  const options = [
    `lowerdir=${layers.map((layer) => layer.root).join(':')}`,
    `upperdir=${join(scope.directory, 'upper')},workdir=${join(scope.directory, 'work')}`,
  ].join(',');
  await mustRun(['mount', '-t', 'overlay', 'overlay', '-o', options, root]);
  furnishNode(root, 'n1', '127.0.0.1 localhost n1\n', 'limits');
  const program = new URL('../support/storage/limits-program.ts', import.meta.url);
  await bundleFile(program, join(root, programPath('limits')));
  const guest = await Guest.boot({ scope, name: 'limits', root, memory: '512M', disks: [], init: 'systemd' });
  limits = JSON.parse(await guest.must(['node', programPath('limits')], { timeoutMs: 240_000 })) as Limits;
  await guest.killHard();
});
afterAll(async () => {
  await scope?.close();
});

describe('the limits of a job', () => {
  test('are those of its slice in the kernel', () => {
    expect(limits.files).toEqual({
      'memory.max': String(64 << 20),
      'cpu.max': '40000 100000',
      'pids.max': '16',
    });
  });

  test('end a step that needs more memory than the job has, with that cause, and no other step', () => {
    expect(limits.hog).toEqual({
      result: { result: 'oom-kill', code: 'killed', status: 9, stopped: false },
      stdout: '',
    });
    expect(limits.after).toMatchObject({ result: { result: 'success' }, stdout: 'still here\n' });
  });

  test('keep it from more processes than it has', () => {
    expect(limits.forks.result.code).toBe('exited');
    expect(limits.forks.result.status).not.toBe(0);
    expect(limits.forks.stdout).toBe('');
  });

  test('are refused where the kernel has no controller for them', () => {
    expect(limits.absent).toMatch(/^resource-unsupported: .*cpuset is not there/);
  });

  test('leave nothing behind', () => {
    expect(limits.left).toEqual([]);
  });
});
