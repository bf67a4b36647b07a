import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import type { Context } from '../../../src/operations/context.ts';
import { readStatus, requireAnswers } from '../../../src/operations/status.ts';
import { errorOf, setUp, useFakeTime } from './scene.ts';

beforeEach(useFakeTime);
afterEach(() => {
  vi.useRealTimers();
});

const sandbox = {
  lease: 1,
  job: '42',
  attempt: 0,
  uid: 70_000,
  unit: 'anchor.service',
  state: 'ready',
  remainingMs: 5,
  steps: [],
};

test('a status shows the leases, the pool, and of each node its sandboxes or why it has no answer', async () => {
  const { context, all, at } = await setUp();
  for (const worker of all) {
    worker.on('status', () => ({ node: worker.node, bootId: 'boot-1', sandboxes: [sandbox] }));
  }
  at('n2').die();
  const status = await readStatus(context, undefined);
  expect(status.leases.map(({ lease, uid }) => [lease, uid])).toEqual([[1, 70_000]]);
  expect(status.pool).toEqual({ size: 10, leased: 1 });
  expect(status.nodes).toEqual([
    { node: 'n1', reachable: true, sandboxes: [sandbox] },
    {
      node: 'n2',
      reachable: false,
      error: { code: 'worker-unreachable', message: 'n2: no connection to n2: ECONNREFUSED' },
    },
    { node: 'n3', reachable: true, sandboxes: [sandbox] },
  ]);
});

test('a status of some nodes asks only those, and of an unknown one nobody', async () => {
  const { context, at, asked } = await setUp();
  at('n3').on('status', () => ({ node: 'n3', bootId: 'boot-1', sandboxes: [] }));
  expect((await readStatus(context, 'n3')).nodes).toHaveLength(1);
  expect(asked('status')).toEqual(['n3']);
  expect((await errorOf(readStatus(context, 'n[3-4]'))).code).toBe('node-unknown');
  expect(asked('status')).toEqual(['n3']);
});

test('a node that gives no answer matters where it was named, where a lease waits for it, and where none answers', async () => {
  const scene = await setUp({ names: ['n1', 'n2', 'n3'] });
  for (const worker of scene.all)
    worker.on('status', () => ({ node: worker.node, bootId: 'boot-1', sandboxes: [sandbox] }));
  const look = async (nodes?: string) => await readStatus(scene.context, nodes);
  requireAnswers(await look(), false);

  scene.at('n2').die();
  const seen = await look();
  expect(() => requireAnswers(seen, false)).toThrow(
    expect.objectContaining({
      code: 'worker-unreachable',
      exitStatus: 69,
      message: 'no answer from 1 node: n2: no connection to n2: ECONNREFUSED',
      facts: expect.objectContaining({ detail: seen }),
    }),
  );
  const unheld = { ...seen, leases: [] };
  expect(() => requireAnswers(unheld, false)).not.toThrow();
  expect(() => requireAnswers(unheld, true)).toThrow('no answer from 1 node');
  const certified = seen.leases.map((lease) => ({
    ...lease,
    nodes: lease.nodes.map((node) => ({ ...node, certified: node.node === 'n2' })),
  }));
  expect(() => requireAnswers({ ...seen, leases: certified }, false)).not.toThrow();

  for (const worker of scene.all) worker.die();
  const silent = { ...(await look()), leases: [] };
  expect(() => requireAnswers(silent, false)).toThrow('no answer from 3 nodes: n[1-3]: no connection to');
});

test('a node that a lease waits for is asked although the configuration no longer names it', async () => {
  const { context, all, asked } = await setUp({ names: ['n1', 'n2', 'n3'] });
  for (const worker of all)
    worker.on('status', () => ({ node: worker.node, bootId: 'boot-1', sandboxes: [sandbox] }));
  const { settings } = context;
  const hosts = settings.nodes.hosts.filter((node) => node !== 'n2');
  const narrowed: Context = Object.create(context, {
    settings: { value: { ...settings, nodes: { ...settings.nodes, hosts } } },
  });
  await readStatus(narrowed, undefined);
  expect([...asked('status')].sort()).toEqual(['n1', 'n2', 'n3']);
});
