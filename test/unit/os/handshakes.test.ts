import { describe, expect, test } from 'vitest';
import { Handshakes } from '../../../src/os/handshakes.ts';

describe('handshakes over their bound', () => {
  test('cost the host that has most of them its oldest, and nobody else', () => {
    const handshakes = new Handshakes<string>(4);
    expect(handshakes.add('few', 1, 'few 1')).toBeUndefined();
    for (const port of [1, 2, 3]) expect(handshakes.add('flood', port, `flood ${port}`)).toBeUndefined();
    expect(handshakes.add('other', 1, 'other 1')).toBe('flood 1');
    expect(handshakes.add('flood', 4, 'flood 4')).toBe('flood 2');
    expect(handshakes.all()).toEqual(['few 1', 'flood 3', 'flood 4', 'other 1']);
  });

  test('count no more once they are over', () => {
    const handshakes = new Handshakes<string>(1);
    handshakes.add('a', 1, 'first');
    handshakes.remove('a', 1);
    expect(handshakes.add('a', 1, 'second')).toBeUndefined();
    handshakes.remove('a', 1, 'first');
    expect(handshakes.all()).toEqual(['second']);
    handshakes.remove('a', 1, 'second');
    handshakes.remove('b', 1);
    expect(handshakes.add('b', 1, 'third')).toBeUndefined();
    expect(handshakes.add('b', 2, 'fourth')).toBe('third');
    expect(handshakes.all()).toEqual(['fourth']);
  });
});
