import { describe, expect, test } from 'vitest';
import { NONCE_AGE_MS_MAX, NONCES_MAX, Nonces } from '../../../src/worker/nonces.ts';
import { FakeClock } from './fakes.ts';

describe('nonces', () => {
  test('a nonce is 16 random bytes in hex and knows when it was issued', () => {
    const clock = new FakeClock();
    const nonces = new Nonces(clock);
    const nonce = nonces.issue();
    expect(nonce).toMatch(/^[0-9a-f]{32}$/);
    clock.nowMs += 500;
    expect(nonces.issuedMs(nonce)).toBe(clock.nowMs - 500);
  });

  test('a nonce of another process is unknown', () => {
    const clock = new FakeClock();
    expect(new Nonces(clock).issuedMs(new Nonces(clock).issue())).toBeUndefined();
  });

  test('a nonce that was answered is unknown', () => {
    const nonces = new Nonces(new FakeClock());
    const nonce = nonces.issue();
    nonces.close(nonce);
    expect(nonces.issuedMs(nonce)).toBeUndefined();
  });

  test('a nonce that nobody answered in ten minutes is void and forgotten at the next issue', () => {
    const clock = new FakeClock();
    const nonces = new Nonces(clock);
    const nonce = nonces.issue();
    clock.nowMs += NONCE_AGE_MS_MAX;
    expect(nonces.issuedMs(nonce)).toBeUndefined();
    nonces.issue();
    expect(nonces.size).toBe(1);
  });

  test('the oldest makes room when there are too many', () => {
    const nonces = new Nonces(new FakeClock());
    const first = nonces.issue();
    const second = nonces.issue();
    for (let count = 2; count <= NONCES_MAX; count += 1) nonces.issue();
    expect(nonces.size).toBe(NONCES_MAX);
    expect(nonces.issuedMs(first)).toBeUndefined();
    expect(nonces.issuedMs(second)).toBeDefined();
  });
});
