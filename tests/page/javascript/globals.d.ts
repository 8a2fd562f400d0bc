// Chart.js, which the service adds to the files of the page.
declare module "*/chart.js";
declare var Chart: any;
