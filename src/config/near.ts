/** Edits (insert, delete, replace, swap of neighbours) between two short words. */
const countEdits = (left: string, right: string): number => {
  let older: number[] = [];
  let previous = Array.from({ length: right.length + 1 }, (_, column) => column);
  for (let row = 1; row <= left.length; row += 1) {
    const current = [row];
    for (let column = 1; column <= right.length; column += 1) {
      const same = left[row - 1] === right[column - 1];
      const swapped = left[row - 1] === right[column - 2] && left[row - 2] === right[column - 1];
      current.push(
        Math.min(
          (previous[column] ?? 0) + 1,
          (current[column - 1] ?? 0) + 1,
          (previous[column - 1] ?? 0) + (same ? 0 : 1),
          swapped && row > 1 && column > 1 ? (older[column - 2] ?? 0) + 1 : Number.POSITIVE_INFINITY,
        ),
      );
    }
    older = previous;
    previous = current;
  }
  return previous[right.length] ?? 0;
};

/** The known word that was probably meant, if there is one within a third of its length. */
export const findNear = (word: string, known: readonly string[]): string | undefined => {
  if (word.length > 64) return undefined;
  const wanted = word
    .toLowerCase()
    .replaceAll('-', '_')
    .replace(/[^a-z0-9_]/g, '');
  return known
    .map((candidate) => ({ candidate, edits: countEdits(wanted, candidate) }))
    .filter(({ candidate, edits }) => edits <= Math.max(1, Math.floor(candidate.length / 3)))
    .sort((left, right) => left.edits - right.edits)[0]?.candidate;
};
