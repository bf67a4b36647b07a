/** An inclusive range of ids. */
export type IdRange = { readonly first: number; readonly last: number };

export const isInRange = (id: number, range: IdRange): boolean => id >= range.first && id <= range.last;
