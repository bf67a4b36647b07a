import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { challengeNodes } from '../../../src/operations/challenge.ts';
import { settle, setUp, useFakeTime } from './scene.ts';

beforeEach(useFakeTime);
afterEach(() => {
  vi.useRealTimers();
});

test('a challenge gives the binding and the nonce of every node', async () => {
  const { context, nodes } = await setUp();
  const { bindings, nonces, failed } = await challengeNodes(context, nodes, 'ticket');
  expect(failed).toEqual([]);
  expect(bindings).toEqual(
    nodes.map((node) => ({
      node,
      bootId: 'boot-1',
      workerKey: Buffer.from(node).toString('hex').padEnd(64, '0'),
    })),
  );
  expect([...nonces]).toEqual(nodes.map((node) => [node, '1'.padStart(32, '0')]));
});

test.each([
  ['node', { node: 'n3' }, 'peer-unknown', 'n2: it says it is n3, instance main'],
  ['instance', { instance: 'other' }, 'peer-unknown', 'n2: it says it is n2, instance other'],
  [
    'major version',
    { protocol: { major: 2, minor: 0 } },
    'protocol',
    expect.stringMatching(/^n2: .*protocol\.major/),
  ],
  ['key that is none', { workerKey: 'ff' }, 'protocol', expect.stringMatching(/^n2: .*workerKey/)],
])('an answer for another %s fails that node, and only that node', async (_, changes, code, message) => {
  const { context, nodes, at } = await setUp();
  at('n2').on('challenge', () => ({ ...at('n2').challenge(), ...changes }));
  const { bindings, nonces, failed } = await challengeNodes(context, nodes, 'ticket');
  expect(failed).toMatchObject([{ code, message, facts: { at: 'n2' } }]);
  expect(bindings.map(({ node }) => node)).toEqual(['n1', 'n3']);
  expect([...nonces.keys()]).toEqual(['n1', 'n3']);
});

test('a node that is silent, and one that cannot be reached, have failed', async () => {
  const { context, nodes, at } = await setUp();
  at('n1').on('challenge', () => new Promise(() => undefined));
  at('n3').die();
  const challenged = challengeNodes(context, nodes, 'ticket');
  await vi.advanceTimersByTimeAsync(60_000);
  const { failed } = await challenged;
  expect(failed.map(({ code, facts }) => [facts.at, code])).toEqual([
    ['n1', 'timeout'],
    ['n3', 'worker-unreachable'],
  ]);
});

test('questions that are given up fail at once', async () => {
  const { context, nodes, at } = await setUp();
  at('n1').on('challenge', () => new Promise(() => undefined));
  const giveUp = new AbortController();
  const challenged = challengeNodes(context, nodes, 'ticket', giveUp.signal);
  await settle();
  giveUp.abort();
  expect((await challenged).failed).toMatchObject([{ code: 'cancelled', facts: { at: 'n1' } }]);
});
