/** What the demo found, a line each. */
export type Fact = {
  readonly what: string;
  readonly found: string;
  /** Whether it is as it has to be. */
  readonly holds: boolean;
};

export const formatFacts = (facts: readonly Fact[]): string => {
  const width = Math.max(0, ...facts.map(({ what }) => what.length));
  return facts
    .map(({ what, found, holds }) => `${holds ? 'ok ' : 'NOT'}  ${what.padEnd(width)}  ${found}`)
    .join('\n');
};
