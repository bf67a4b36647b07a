import { describe, expect, test } from 'vitest';
import type { Resources } from '../../../src/rpc/message.ts';
import { allow, controllersFor, DEFAULT_RESOURCES, isSameResources } from '../../../src/sandbox/resources.ts';
import { settingsFor } from '../operations/scene.ts';

const base = settingsFor([]);
const settings = {
  sandbox: {
    ...base.sandbox,
    tasksMax: 100,
    cpuPercent: 400,
    cpus: [0, 1, 2, 3],
    memoryBytes: 4 << 20,
    devices: ['/dev/infiniband/uverbs*', '/dev/fuse'],
  },
  environments: [{ name: 'gcc', variables: [] }],
};
const asked = (more: Partial<Resources>) => allow(settings, { ...DEFAULT_RESOURCES, ...more });
const codeOf = (more: Partial<Resources>): unknown => {
  try {
    return asked(more);
  } catch (error) {
    return error instanceof Error && 'code' in error ? error.code : error;
  }
};

describe('what a job may use', () => {
  test('is what the configuration says where nothing is asked for', () => {
    expect(asked({})).toEqual({
      cpuPercent: 400,
      cpus: [0, 1, 2, 3],
      memoryBytes: 4 << 20,
      tasks: 100,
      devices: ['/dev/infiniband/uverbs*', '/dev/fuse'],
      profile: null,
    });
    const open = { sandbox: base.sandbox, environments: [] };
    const allowance = allow(open, DEFAULT_RESOURCES);
    expect(allowance).toMatchObject({ cpuPercent: null, cpus: null, memoryBytes: null });
    expect(controllersFor(allowance)).toEqual([]);
  });

  test('may be less', () => {
    const less: Partial<Resources> = {
      cpuPercent: 50,
      cpus: [3],
      memoryBytes: 1 << 20,
      tasks: 16,
      devices: ['/dev/infiniband/uverbs1'],
      profile: 'gcc',
    };
    expect(asked(less)).toEqual(less);
    expect(controllersFor(asked(less))).toEqual(['cpu', 'cpuset', 'memory']);
    expect(asked({ devices: [] }).devices).toEqual([]);
    expect(asked({ devices: ['/dev/infiniband/uverbs*'] }).devices).toEqual(['/dev/infiniband/uverbs*']);
  });

  test.each<Partial<Resources>>([
    { cpuPercent: 401 },
    { cpus: [0, 4] },
    { memoryBytes: (4 << 20) + 1 },
    { tasks: 101 },
    { devices: ['/dev/fuse', '/dev/mem'] },
    { devices: ['/dev/infiniband/uverbs0/../mem'] },
    { devices: ['/dev/infiniband/uverb'] },
    { devices: ['/dev/*'] },
    { profile: 'other' },
  ])('is never more: %j', (more) => {
    expect(codeOf(more)).toBe('resource-refused');
  });

  test('is the same whatever the order in which it is asked for', () => {
    const one = { ...DEFAULT_RESOURCES, cpus: [1, 0], devices: ['/dev/b', '/dev/a'] };
    expect(isSameResources(one, { ...one, cpus: [0, 1], devices: ['/dev/a', '/dev/b'] })).toBe(true);
    expect(isSameResources(one, { ...one, cpus: [0] })).toBe(false);
    expect(isSameResources(DEFAULT_RESOURCES, { ...DEFAULT_RESOURCES, tasks: 64 })).toBe(false);
  });
});
