/**
 * Whether the pool is free of everything that hands out ids by itself. Pure: ranges that a machine declares
 * come in as values.
 */
import { XceError } from '../base/errors.ts';
import type { IdRange } from '../base/id-range.ts';
import type { DeclaredRange } from '../os/declared-ranges.ts';

const UID_MAX = 2_147_483_647;

/** Ranges that are taken on every machine: https://systemd.io/UIDS-GIDS/ and the kernel. */
export const FIXED_RANGES: readonly DeclaredRange[] = [
  { first: 0, last: 0, owner: 'root' },
  { first: 1, last: 999, owner: 'system accounts' },
  { first: 60_001, last: 60_513, owner: 'systemd-homed' },
  { first: 60_514, last: 60_577, owner: 'host users that systemd-nspawn maps into containers' },
  { first: 61_184, last: 65_519, owner: "systemd's dynamic users" },
  { first: 65_534, last: 65_534, owner: 'nobody' },
  { first: 65_535, last: 65_535, owner: 'the 16-bit uid -1' },
  { first: 524_288, last: 1_879_048_191, owner: 'systemd-nspawn containers' },
  { first: 2_147_352_576, last: 2_147_418_111, owner: "systemd's foreign uids" },
  { first: UID_MAX + 1, last: 9_999_999_999, owner: `ids above the supported maximum ${UID_MAX}` },
];

/** The part of the pool that is somebody else's. */
export type Overlap = { readonly first: number; readonly last: number; readonly with: DeclaredRange };

export const findOverlaps = (pool: IdRange, taken: readonly DeclaredRange[]): readonly Overlap[] =>
  taken.flatMap((range) => {
    const first = Math.max(pool.first, range.first);
    const last = Math.min(pool.last, range.last);
    return first <= last ? [{ first, last, with: range }] : [];
  });

const show = ({ first, last }: IdRange): string => (first === last ? `${first}` : `${first}-${last}`);

const OVERLAPS_TOLD_MAX = 4;

/** One line: the pool, each part that is taken, and whose it is; undefined when nothing overlaps. */
export const describeOverlaps = (pool: IdRange, overlaps: readonly Overlap[]): string | undefined => {
  if (overlaps.length === 0) return undefined;
  const told = overlaps
    .slice(0, OVERLAPS_TOLD_MAX)
    .map((overlap) => `${show(overlap)} belongs to ${overlap.with.owner} (${show(overlap.with)})`);
  const more = overlaps.length - told.length;
  return `[pool] range ${show(pool)}: ${told.join(', ')}${more > 0 ? `, and ${more} more` : ''}`;
};

/** Throws 'pool-range' when the pool touches a range that this machine declares. */
export const requireFreePool = (pool: IdRange, declared: readonly DeclaredRange[]): void => {
  const overlaps = findOverlaps(pool, declared);
  const message = describeOverlaps(pool, overlaps);
  if (message === undefined) return;
  throw new XceError('pool-range', message, {
    unchanged: 'no uid was handed out',
    next: 'choose a [pool] range that nothing else uses, for example 70000-79999',
    detail: { overlaps: overlaps.slice(0, 64) },
  });
};
