/** How an operation tells what it is doing; whoever calls it decides whether and how that is shown. */
export type Progress = {
  phase<T>(title: string, work: (update: (text: string) => void) => Promise<T>): Promise<T>;
};
