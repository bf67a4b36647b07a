import { expect, test } from 'vitest';
import { renderFollowed } from '../../../src/cli/render-watch.ts';
import { decodeEvent, encodeEvent, type LeaseEvent } from '../../../src/lease/event.ts';

const PLACE = { type: 'events', epoch: 3, sequence: 7, offset: 900, wallMs: 0 } as const;

/** As it comes from the log. */
const render = (event: unknown): string =>
  renderFollowed({ ...PLACE, events: [decodeEvent(encodeEvent(event as LeaseEvent))] });

test('what somebody else chose cannot steer the terminal, and stays on its line', () => {
  const bad = 'gone\u001b[2J\u202e\nlease 9';
  const shown = 'gone\\x1b[2J\\u{202e}\\nlease 9';
  const quarantine = { code: 'operator', text: bad, node: null, wallMs: 1 };
  expect(render({ kind: 'quarantine', lease: 2, quarantine })).toBe(
    `1970-01-01T00:00:00.000Z  quarantine  lease 2  operator: ${shown}\n`,
  );
  const reclaim = { by: bad, reason: bad, wallMs: 1 };
  expect(render({ kind: 'reclaim', lease: 2, node: 'n1', reclaim })).toBe(
    `1970-01-01T00:00:00.000Z  reclaim  lease 2  n1, by ${shown}: ${shown}\n`,
  );
});

test('events of one record have a line each, and those without more to say end behind the lease', () => {
  const events = [
    { kind: 'normalise', lease: 2 },
    { kind: 'forget', count: 3 },
  ] as readonly LeaseEvent[];
  expect(renderFollowed({ ...PLACE, events })).toBe(
    '1970-01-01T00:00:00.000Z  normalise  lease 2\n1970-01-01T00:00:00.000Z  forget  3 ended attempts\n',
  );
});

test('what could not be read, and what storage lost, is said with its place', () => {
  const from = { epoch: 1, sequence: 3 };
  const to = { epoch: 2, sequence: 9 };
  expect(renderFollowed({ type: 'gap', from, to })).toBe(
    'gap: from record 3 of epoch 1 to record 9 of epoch 2 the log was emptied before it was read\n',
  );
  expect(renderFollowed({ type: 'withdrawn', from, to })).toMatch(
    /^withdrawn: .* record 9 of epoch 2; .*\n$/,
  );
});
