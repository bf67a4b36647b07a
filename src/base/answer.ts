/**
 * What a call answers: the value itself where the call is made in place, a promise where it is made in another thread.
 * A call in place takes a microsecond, and a promise for each layer above it many times as long.
 */
export type Answer<T> = T | Promise<T>;

/** What `next` makes of an answer: at once, where the answer is there at once. */
export const after = <T, Next>(answer: Answer<T>, next: (value: T) => Answer<Next>): Answer<Next> =>
  answer instanceof Promise ? answer.then(next) : next(answer);

/** What a step answers; `failed` gets what it throws, or what its promise is rejected with. */
export const attempt = <T>(step: () => Answer<T>, failed: (error: unknown) => Answer<T>): Answer<T> => {
  let answer: Answer<T>;
  try {
    answer = step();
  } catch (error) {
    return failed(error);
  }
  return answer instanceof Promise ? answer.catch(failed) : answer;
};
