/** What an exhaustive walk found: the number of states, and a shortest way to a violation if there is one. */
export type Walk = {
  readonly states: number;
  readonly violation: string | undefined;
  readonly trace: readonly string[];
};

/** Breadth first over every reachable state, each once. Throws beyond `statesMax`: a walk that was cut proves nothing. */
export const explore = <State>(
  start: State,
  successors: (state: State) => readonly (readonly [string, State])[],
  judge: (state: State) => string | undefined,
  keyOf: (state: State) => string,
  statesMax: number,
): Walk => {
  type Node = { readonly state: State; readonly what: string; readonly from: Node | undefined };
  const seen = new Set<string>([keyOf(start)]);
  const queue: Node[] = [{ state: start, what: 'start', from: undefined }];
  for (let head = 0; head < queue.length; head++) {
    const node = queue[head];
    if (node === undefined) break;
    const violation = judge(node.state);
    if (violation !== undefined) {
      const trace: string[] = [];
      for (let at: Node | undefined = node; at !== undefined; at = at.from) trace.unshift(at.what);
      return { states: seen.size, violation, trace };
    }
    for (const [what, state] of successors(node.state)) {
      const key = keyOf(state);
      if (seen.has(key)) continue;
      seen.add(key);
      if (seen.size > statesMax) throw new Error(`more than ${statesMax} states`);
      queue.push({ state, what, from: node });
    }
  }
  return { states: seen.size, violation: undefined, trace: [] };
};
