import fc from 'fast-check';
import { decode as decodeIni } from 'ini';
import { expect, test } from 'vitest';
import { XceError } from '../../src/base/errors.ts';
import { decodeConfig } from '../../src/config/decode.ts';
import { FIXED_RANGES, findOverlaps } from '../../src/config/pool-ranges.ts';

const FILE = 'x.ini';
const BASE = `# comment
[cluster]
name = hpc
[pool]
range = 70000-79999
[directory]
control_uid = 1001
[lease]
directory = "/srv/xce-lease"
[nodes]
hosts = n[1-3]
[storage scratch]
path = /scratch
`;

/** The settings, or undefined where they were refused by an error that has a code of ours. */
const decode = (bytes: Buffer): ReturnType<typeof decodeConfig> | undefined => {
  try {
    return decodeConfig(bytes, FILE, 'n1');
  } catch (error) {
    if (error instanceof XceError && ['config-syntax', 'config-value', 'pool-range'].includes(error.code)) {
      expect(error.message).not.toMatch(/[\p{Cc}]/u);
      return undefined;
    }
    throw error;
  }
};

/** Every value of the file is what ini makes of the same bytes, and ini sees no section and no key beside. */
const agreesWithIni = (bytes: Buffer, decoded: ReturnType<typeof decodeConfig>): void => {
  const seen = Object.entries(decodeIni(new TextDecoder().decode(bytes))).flatMap(([section, keys]) =>
    Object.entries(keys as Record<string, unknown>).map(
      ([key, value]) => `${section} ${key} ${String(value)}`,
    ),
  );
  const ours = decoded.origins
    .filter(({ from }) => from.startsWith(`${FILE}:`))
    .map(({ section, key, value }) => `${section} ${key} ${value}`);
  expect(ours.toSorted()).toEqual(seen.toSorted());
};

test('a file with a few bytes changed, added or taken out is refused or read as ini reads it', () => {
  const special = fc.constantFrom(...Buffer.from('#;="\'\\[]\r\n\t .,-0_\0\xef\xbb\xbf', 'latin1'));
  const edit = fc.record({
    at: fc.nat(BASE.length),
    remove: fc.nat(3),
    insert: fc.array(fc.oneof(special, fc.nat(255)), { maxLength: 3 }),
  });
  let accepted = 0;
  fc.assert(
    fc.property(fc.array(edit, { minLength: 1, maxLength: 3 }), (edits) => {
      const bytes = edits.reduce(
        (before, { at, remove, insert }) =>
          Buffer.concat([before.subarray(0, at), Buffer.from(insert), before.subarray(at + remove)]),
        Buffer.from(BASE),
      );
      const decoded = decode(bytes);
      if (decoded === undefined) return;
      accepted += 1;
      agreesWithIni(bytes, decoded);
    }),
    { numRuns: 1000 },
  );
  expect(accepted).toBeGreaterThan(0);
}, 60_000);

test('lines in any order of sections, with comments, blanks and either line end, read the same', () => {
  const sections = BASE.split(/^(?=\[)/m).slice(1);
  const expected = decode(Buffer.from(BASE))?.settings;
  fc.assert(
    fc.property(
      fc.shuffledSubarray(sections, { minLength: sections.length }),
      fc.constantFrom('\n', '\r\n'),
      fc.boolean(),
      fc.array(fc.constantFrom('', '  ', '# x = [y]', '\t; "'), { maxLength: 4 }),
      (shuffled, lineEnd, marked, extra) => {
        const text = shuffled.map((section) => `${extra.join('\n')}\n${section}`).join('');
        const bytes = Buffer.from((marked ? '\ufeff' : '') + text.replaceAll('\n', lineEnd));
        expect(decode(bytes)?.settings).toEqual(expected);
      },
    ),
    { numRuns: 200 },
  );
});

test('a pool is accepted exactly when none of its ids is taken', () => {
  const edges = FIXED_RANGES.flatMap(({ first, last }) => [first - 1, first, last, last + 1]);
  const id = fc.constantFrom(...edges.filter((edge) => edge > 0 && edge < 2 ** 32));
  fc.assert(
    fc.property(id, id, (one, other) => {
      const pool = { first: Math.min(one, other), last: Math.max(one, other) };
      const text = BASE.replace('70000-79999', `${pool.first}-${pool.last}`).replace('1001', '60999');
      const touches = FIXED_RANGES.some(({ first, last }) =>
        [...edges].some((edge) => edge >= pool.first && edge <= pool.last && edge >= first && edge <= last),
      );
      expect(findOverlaps(pool, FIXED_RANGES).length > 0).toBe(touches);
      const holdsControl = pool.first <= 60_999 && pool.last >= 60_999;
      expect(decode(Buffer.from(text)) === undefined).toBe(touches || holdsControl);
    }),
    { numRuns: 500 },
  );
});
