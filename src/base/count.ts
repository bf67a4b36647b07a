/** A number of things, for people: `1 node`, `2 nodes`. */
export const countOf = (count: number, noun: string): string => `${count} ${noun}${count === 1 ? '' : 's'}`;
