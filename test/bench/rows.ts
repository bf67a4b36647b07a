/** What a benchmark says: one row per number, always beside a peer that was measured in the same run. */

export type Goal =
  | { readonly ratioAtMost: number }
  | { readonly ratioAtLeast: number }
  /** In the unit of the row, whatever the peer takes. */
  | { readonly valueAtMost: number };

export type Row = {
  readonly name: string;
  readonly unit: string;
  /** Median. */
  readonly value: number;
  readonly peer: string;
  readonly peerValue: number;
  /** value / peerValue. */
  readonly ratio: number;
  readonly goal: Goal | null;
  readonly met: boolean | null;
  /** Smallest and largest of the runs; how far the peer's differ is the noise of the machine. */
  readonly range: readonly [number, number];
  readonly peerRange: readonly [number, number];
  readonly rounds: number;
};

export const median = (values: readonly number[]): number => {
  const sorted = [...values].sort((a, b) => a - b);
  const middle = sorted.length / 2;
  const [low, high] = [sorted[Math.ceil(middle) - 1], sorted[Math.floor(middle)]];
  if (low === undefined || high === undefined) throw new Error('no values');
  return (low + high) / 2;
};

const round3 = (value: number): number => Number(value.toPrecision(4));

const rangeOf = (values: readonly number[]): readonly [number, number] => [
  round3(Math.min(...values)),
  round3(Math.max(...values)),
];

const isMet = (goal: Goal, value: number, ratio: number): boolean => {
  if ('ratioAtMost' in goal) return ratio <= goal.ratioAtMost;
  return 'ratioAtLeast' in goal ? ratio >= goal.ratioAtLeast : value <= goal.valueAtMost;
};

export const makeRow = (facts: {
  readonly name: string;
  readonly unit: string;
  readonly values: readonly number[];
  readonly peer: string;
  readonly peerValues: readonly number[];
  readonly goal: Goal | null;
}): Row => {
  const { name, unit, peer, goal } = facts;
  const value = median(facts.values);
  const peerValue = median(facts.peerValues);
  const ratio = value / peerValue;
  const met = goal === null ? null : isMet(goal, value, ratio);
  return {
    name,
    unit,
    value: round3(value),
    peer,
    peerValue: round3(peerValue),
    ratio: round3(ratio),
    goal,
    met,
    range: rangeOf(facts.values),
    peerRange: rangeOf(facts.peerValues),
    rounds: facts.values.length,
  };
};

const showGoal = (goal: Goal | null): string => {
  if (goal === null) return '-';
  if ('ratioAtMost' in goal) return `<= ${goal.ratioAtMost}`;
  return 'ratioAtLeast' in goal ? `>= ${goal.ratioAtLeast}` : `value <= ${goal.valueAtMost}`;
};

const HEADINGS = [
  'name',
  'unit',
  'value',
  'min..max',
  'peer',
  'value',
  'min..max',
  'ratio',
  'goal',
  'met',
] as const;
const TEXT_COLUMNS: readonly number[] = [0, 1, 4];

export const formatTable = (rows: readonly Row[]): string => {
  const lines = [
    HEADINGS,
    ...rows.map((row) => [
      row.name,
      row.unit,
      String(row.value),
      row.range.join('..'),
      row.peer,
      String(row.peerValue),
      row.peerRange.join('..'),
      row.ratio.toFixed(2),
      showGoal(row.goal),
      row.met === null ? '-' : String(row.met),
    ]),
  ];
  const widths = HEADINGS.map((_, column) => Math.max(...lines.map((line) => (line[column] ?? '').length)));
  return lines
    .map((line) =>
      line
        .map((cell, column) => {
          const width = widths[column] ?? 0;
          return TEXT_COLUMNS.includes(column) ? cell.padEnd(width) : cell.padStart(width);
        })
        .join('  ')
        .trimEnd(),
    )
    .join('\n');
};
