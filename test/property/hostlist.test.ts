import fc from 'fast-check';
import { expect, test } from 'vitest';
import type { NodeName } from '../../src/base/ids.ts';
import { parseNodeName } from '../../src/base/ids.ts';
import { expandHostlist, foldNodes } from '../../src/nodes/hostlist.ts';

/** Names that collide as much as possible: few letters, short numbers with and without leading zeros. */
const nodeNames = fc
  .uniqueArray(
    fc
      .array(fc.oneof(fc.constantFrom('a', 'b', '-', '.', 'n'), fc.stringMatching(/^0{0,2}[0-9]{1,2}$/)), {
        minLength: 1,
        maxLength: 6,
      })
      .map((parts) => parseNodeName(parts.join('')))
      .filter((name): name is NodeName => name !== undefined),
    { maxLength: 60 },
  )
  .filter((names) => names.length > 0);

test('fold loses and invents no name', () => {
  fc.assert(
    fc.property(nodeNames, (names) => {
      const { names: back, fault } = expandHostlist(foldNodes(names));
      expect(fault).toBeUndefined();
      expect(back?.toSorted()).toEqual([...names].sort());
    }),
    { numRuns: 500 },
  );
});

test('consecutive numbers of one width fold to one range, in whatever order they come', () => {
  fc.assert(
    fc.property(
      fc.nat(1200),
      fc.integer({ min: 2, max: 150 }),
      fc.integer({ min: 1, max: 5 }),
      (first, count, width) => {
        const texts = Array.from({ length: count }, (_, index) => String(first + index).padStart(width, '0'));
        const names = texts.map((text) => parseNodeName(`n${text}`)).filter((name) => name !== undefined);
        expect(foldNodes(names.toReversed())).toBe(`n[${texts[0]}-${texts.at(-1)}]`);
      },
    ),
  );
});

test('any text gives names or a position inside it, never an exception and never nothing', () => {
  const alphabet = fc.constantFrom('n', '0', '1', '9', '[', ']', ',', '-', '.', ' ', '\u0000', 'é');
  fc.assert(
    fc.property(fc.string({ unit: alphabet, maxLength: 24 }), (text) => {
      const { names, fault } = expandHostlist(text);
      if (names === undefined) {
        expect(fault.position).toBeGreaterThanOrEqual(1);
        expect(fault.position).toBeLessThanOrEqual(text.length + 1);
      } else {
        expect(names.length).toBeGreaterThan(0);
        expect(new Set(names).size).toBe(names.length);
      }
    }),
    { numRuns: 1000 },
  );
});
